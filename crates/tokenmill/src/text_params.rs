//! [`TextParams`]: the parameters of a request for text.
//!
//! Plain data. Invariant: [`EngineParams`] holds everything that a program without clients of its own can
//! ignore.

use std::{sync::Arc, time::Duration};

use tokenmill_backend::SamplingParams;
use tokenmill_sched::Media;

use crate::{Constraint, reply_reader::ReplyReader};

/// The parameters of generated text, and of its end. The default takes the likeliest token each time, to the end of the text.
///
/// The fields can be set, and the methods set the most used of them in a chain:
///
/// ```
/// use tokenmill::TextParams;
///
/// let params = TextParams::new().max_tokens(64).temperature(0.8).top_p(0.95).seed(7).stop("\n\n");
/// assert_eq!(params.max_tokens, Some(64));
/// ```
#[derive(Clone, Debug)]
pub struct TextParams {
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Most tokens; `None` generates to the end of the context.
    pub max_tokens: Option<u32>,
    /// Fewest tokens before one that ends a text. A constraint that allows nothing else ends it earlier.
    pub min_tokens: u32,
    /// Samples.
    pub n: u32,
    /// Strings that end a sample and are not part of it.
    pub stops: Vec<String>,
    /// Shape of a sample, such as JSON of a schema; `None` allows every text.
    pub constraint: Option<Constraint>,
    /// Tokens that the reasoning of a conversation's answer may take; then the model's own end of it is written, and the
    /// answer follows. Nothing for models that do not reason.
    pub thinking_budget: Option<u32>,
    /// Further tokens that end a sample and are not part of it, even if the model's own end tokens are ignored.
    pub stop_tokens: Vec<u32>,
    /// Whether end-of-text tokens are ordinary tokens.
    pub ignore_eos: bool,
    /// Longest time from arrival to end.
    pub deadline: Option<Duration>,
    /// Longest time until it begins.
    pub queue_timeout: Option<Duration>,
    /// Higher begins first and may take the place of lower.
    pub priority: i32,
    /// The name of the adapter to compute with; `None` uses the model without one.
    pub adapter: Option<String>,
    /// Parameters for servers, and for programs that build prompts themselves.
    pub engine: EngineParams,
}

/// Holds the parts of a request that servers set, and callers of [`Model::generate`](crate::Model::generate).
#[derive(Clone, Debug, Default)]
pub struct EngineParams {
    /// Keeps cached prefixes apart from those of requests with another salt.
    pub cache_salt: u64,
    /// Number of the client, so that no client can block the compilation of others' constraints.
    pub client: u64,
    /// Reads reasoning and tool calls out of the answers; [`Model::chat`](crate::Model::chat) sets it itself.
    pub reader: Option<ReplyReader>,
    /// The rows of the images in the first prompt, which [`Model::see`](crate::Model::see) makes; [`Model::chat`](crate::Model::chat)
    /// sets it itself.
    pub media: Arc<[Media]>,
    /// Whether the stream has a [`TextEvent::Prefill`](crate::stream::TextEvent::Prefill) for each computed part of a prompt.
    pub reports_prefill: bool,
}

impl Default for TextParams {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_tokens: None,
            min_tokens: 0,
            n: 1,
            stops: Vec::new(),
            constraint: None,
            thinking_budget: None,
            stop_tokens: Vec::new(),
            ignore_eos: false,
            deadline: None,
            queue_timeout: None,
            priority: 0,
            adapter: None,
            engine: EngineParams::default(),
        }
    }
}

impl TextParams {
    /// The default: the likeliest token each time, to the end of the text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most tokens.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: u32) -> Self {
        self.max_tokens = Some(max_tokens);
        self
    }

    /// Sets the temperature; 0 takes the likeliest token each time.
    #[must_use]
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.sampling.temperature = temperature;
        self
    }

    /// Keeps only the `top_k` likeliest tokens; 0 keeps all.
    #[must_use]
    pub fn top_k(mut self, top_k: u32) -> Self {
        self.sampling.top_k = top_k;
        self
    }

    /// Keeps only the likeliest tokens, up to a total probability of `top_p`; 1 keeps all.
    #[must_use]
    pub fn top_p(mut self, top_p: f32) -> Self {
        self.sampling.top_p = top_p;
        self
    }

    /// Sets the seed of the draws at temperatures above 0.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampling.seed = seed;
        self
    }

    /// Replaces all sampling parameters.
    #[must_use]
    pub fn sampling(mut self, sampling: SamplingParams) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets the number of samples.
    #[must_use]
    pub fn samples(mut self, n: u32) -> Self {
        self.n = n;
        self
    }

    /// Adds a string that ends a sample and is not part of it.
    #[must_use]
    pub fn stop(mut self, stop: impl Into<String>) -> Self {
        self.stops.push(stop.into());
        self
    }

    /// Sets the shape of a sample, such as JSON of a schema.
    #[must_use]
    pub fn constraint(mut self, constraint: Constraint) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// Sets the most tokens of a conversation's reasoning.
    #[must_use]
    pub fn thinking_budget(mut self, n_tokens: u32) -> Self {
        self.thinking_budget = Some(n_tokens);
        self
    }

    /// Sets the longest time from arrival to end.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the adapter by its name.
    #[must_use]
    pub fn adapter(mut self, name: impl Into<String>) -> Self {
        self.adapter = Some(name.into());
        self
    }
}

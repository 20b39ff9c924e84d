//! What a caller asks of the engine, and how the engine is set up.
//!
//! Plain data, separate from the engine so that servers and command lines can fill it in. Invariant: every field has an
//! effect; a value that cannot be obeyed is refused by [`Engine::submit`](crate::Engine::submit).

use std::{sync::Arc, time::Duration};

use tokenmill_backend::{AdapterId, SamplingParams};

use crate::{
    constraint::ConstraintSource, context_shift::ContextShift, drafting::Speculation, media::Media,
    page_store::SharedPageStore,
};

/// Most samples of one prompt that a request may ask for.
pub const MAX_SAMPLES: u32 = 128;

/// What is generated from a prompt, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateParams {
    /// How each token is chosen. Sample `i` of a request uses `seed + i`, so it equals the only sample of a request
    /// with that seed.
    pub sampling: SamplingParams,
    /// Tokens to generate at most; `None` continues to the end of the context, or where that is
    /// [shifted](EngineConfig::context_shift), to a stop token.
    pub max_tokens: Option<usize>,
    /// Tokens to generate before one of `stop_tokens` may come.
    pub min_tokens: usize,
    /// Tokens that end a sample and are not part of its output.
    pub stop_tokens: Vec<u32>,
    /// What each sample may be made of; `None` allows every token.
    pub constraint: Option<ConstraintSource>,
    /// Samples of the prompt, generated side by side from one prefill.
    pub n_samples: u32,
    /// Higher begins first and may take the place of lower.
    pub priority: i32,
    /// Fails the request unless it begins in time.
    pub queue_timeout: Option<Duration>,
    /// Fails the request unless it ends in time.
    pub deadline: Option<Duration>,
    /// Whether it may use and feed the prefix cache.
    pub uses_prefix_cache: bool,
    /// Keeps cached pages apart from those of requests with another salt (an adapter, a tenant).
    pub cache_salt: u64,
    /// The adapter that it is computed with; its cached pages are its own.
    pub adapter: Option<AdapterId>,
    /// Inputs of the prompt that are no tokens, in the order of their places.
    pub media: Arc<[Media]>,
    /// Whether to keep the time of every token in [`Timings::tokens`](crate::Timings::tokens).
    pub traces_tokens: bool,
    /// What each sample says, whatever the model would: each token is computed and sampled as ever, and the next of these takes its
    /// place. Behind the last the sample continues by itself. For measurements on models whose own words say nothing, such as those of
    /// random weights; neither with a constraint nor with two steps in flight.
    pub follows: Option<Arc<[u32]>>,
}

impl Default for GenerateParams {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_tokens: None,
            min_tokens: 0,
            stop_tokens: Vec::new(),
            constraint: None,
            n_samples: 1,
            priority: 0,
            queue_timeout: None,
            deadline: None,
            uses_prefix_cache: true,
            cache_salt: 0,
            adapter: None,
            media: Arc::new([]),
            traces_tokens: false,
            follows: None,
        }
    }
}

/// What is read of a forward pass that samples nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardRows {
    /// Raw logits, `n_vocab` numbers a row.
    Logits,
    /// Hidden states after the final norm, `n_embd` numbers a row; where the network pools, what it makes of the last. An
    /// encoder gives the row of the last position alone, made of all its tokens.
    Hidden,
}

/// A forward pass over known tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardParams {
    /// What is read.
    pub rows: ForwardRows,
    /// First position whose row is read; those before it may come from the prefix cache.
    pub from: usize,
    /// Higher begins first and may take the place of lower.
    pub priority: i32,
    /// Fails the pass unless it begins in time.
    pub queue_timeout: Option<Duration>,
    /// Fails the pass unless it ends in time.
    pub deadline: Option<Duration>,
    /// Whether it may use and feed the prefix cache.
    pub uses_prefix_cache: bool,
    /// Keeps cached pages apart from those of requests with another salt.
    pub cache_salt: u64,
    /// The adapter that it is computed with.
    pub adapter: Option<AdapterId>,
}

impl ForwardParams {
    /// Reads `rows` of the positions from `from` on.
    pub fn new(rows: ForwardRows, from: usize) -> Self {
        Self {
            rows,
            from,
            priority: 0,
            queue_timeout: None,
            deadline: None,
            uses_prefix_cache: true,
            cache_salt: 0,
            adapter: None,
        }
    }
}

/// How an engine schedules.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Sequences computed side by side; clamped to what the executor takes.
    pub max_running: usize,
    /// Tokens of a step; clamped to what the executor takes.
    pub max_step_tokens: usize,
    /// Sequences that may wait to begin.
    pub max_queued: usize,
    /// Prompt tokens that may wait to begin.
    pub max_queued_tokens: usize,
    /// How much longer a step may take because of prefills in it: with 100, twice the time of a step that decodes all sequences, those
    /// too whose prompts are computed. So it bounds the time between two tokens of a running stream by what that is among these
    /// sequences anyway, however many prompts come at once, and a stream that came first does not make many wait long. The engine
    /// measures its steps and sizes the prefill chunks accordingly; 0 leaves prompts what the others would take if they decoded
    /// already, and one token at least.
    pub max_stall_percent: u32,
    /// Events that a stream holds before its sequence is paused; no event is ever dropped.
    pub stream_buffer: usize,
    /// 1, or 2 to plan and submit a step while the one before it still runs; `None` takes what the executor asks for. 2 is
    /// worth it where the executor works apart from the engine's thread, and costs one row of work after each stop
    /// token.
    pub steps_in_flight: Option<usize>,
    /// Whether the prefix cache is used at all.
    pub uses_prefix_cache: bool,
    /// Batches of [`PageEvent`](crate::PageEvent)s that wait for their reader at most; `None` makes no events.
    pub max_page_event_batches: Option<usize>,
    /// Told apart in the prefix cache: weights and whatever else changes K and V.
    pub model_salt: u64,
    /// Whether sequences guess tokens ahead. With two steps in flight a step that is to have drafts waits for the tokens of the one before; with
    /// [`Speculation::Auto`] only where that pays.
    pub speculation: Speculation,
    /// How sequences continue where the context is full; `None` ends them there. Without a
    /// [`max_tokens`](GenerateParams::max_tokens) they then continue until a stop token.
    pub context_shift: Option<ContextShift>,
    /// Where pages of the prefix cache are kept outside of the engine, and found again by a later one.
    pub page_store: Option<SharedPageStore>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_running: 256,
            max_step_tokens: 2048,
            max_queued: 1024,
            max_queued_tokens: 1 << 24,
            max_stall_percent: 75,
            stream_buffer: 256,
            steps_in_flight: None,
            uses_prefix_cache: true,
            max_page_event_batches: None,
            model_salt: 0,
            speculation: Speculation::Off,
            context_shift: None,
            page_store: None,
        }
    }
}

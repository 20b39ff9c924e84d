//! The parameters of requests, and the configuration of the engine.
//!
//! Plain data, so that servers and command lines can fill it in. Invariant: every field has an effect; a
//! value that cannot be honoured is refused by [`Engine::submit`](crate::Engine::submit).

pub(crate) mod context_shift;
pub(crate) mod sampling_key;

use std::{sync::Arc, time::Duration};

use tokenmill_backend::{AdapterId, SamplingParams};

use crate::{
    draft::drafter::Speculation, masks::constraint::ConstraintSource, media::Media,
    pages::store::SharedPageStore, params::context_shift::ContextShift,
};

/// Maximum samples of one prompt in a request.
pub const MAX_SAMPLES: u32 = 128;

/// The parameters of a request to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateParams {
    /// How each token is sampled. Sample `i` of a request uses `seed + i`, so it equals the only sample of a
    /// request with that seed.
    pub sampling: SamplingParams,
    /// Maximum tokens to generate; `None` continues to the end of the context or, with a [context
    /// shift](EngineConfig::context_shift), to a stop token.
    pub max_tokens: Option<usize>,
    /// Minimum tokens to generate before one of `stop_tokens` may come.
    pub min_tokens: usize,
    /// Tokens that end a sample and are not part of its output.
    pub stop_tokens: Vec<u32>,
    /// The constraint of each sample; `None` allows every token.
    pub constraint: Option<ConstraintSource>,
    /// Number of samples of the prompt, generated in one batch from one prefill.
    pub n_samples: u32,
    /// Higher priorities begin first and may preempt lower ones.
    pub priority: i32,
    /// Fails the request unless it begins within this time.
    pub queue_timeout: Option<Duration>,
    /// Fails the request unless it ends within this time.
    pub deadline: Option<Duration>,
    /// Whether it may use and feed the prefix cache.
    pub uses_prefix_cache: bool,
    /// Separates its cached pages from those of requests with another salt (an adapter, a tenant).
    pub cache_salt: u64,
    /// The adapter to compute with; its cached pages are separate.
    pub adapter: Option<AdapterId>,
    /// Non-token inputs of the prompt, in the order of their places.
    pub media: Arc<[Media]>,
    /// Whether to record the time of every token in [`Timings::tokens`](crate::Timings::tokens).
    pub traces_tokens: bool,
    /// Whether each step that computes a part of the prompt sends an [`Event::Prefill`](crate::Event::Prefill), after a first one at the
    /// start.
    pub reports_prefill: bool,
    /// Predetermined output of each sample: each token is computed and sampled as usual, and then replaced by
    /// the next of these. After the last, the sample continues by itself. It is meant for measurements on
    /// models with meaningless output, such as random weights. It cannot be combined with a constraint or
    /// with two steps in flight.
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
            reports_prefill: false,
            follows: None,
        }
    }
}

/// The rows that a forward pass without sampling reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardRows {
    /// Raw logits, `n_vocab` numbers a row.
    Logits,
    /// Hidden states after the final norm, `n_embd` numbers a row; if the network pools, the pooled row. An
    /// encoder that pools returns only the row of the last position, computed from all its tokens.
    Hidden,
}

/// A forward pass over known tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardParams {
    /// The rows to read.
    pub rows: ForwardRows,
    /// First position to read; earlier ones may come from the prefix cache.
    pub from: usize,
    /// Higher priorities begin first and may preempt lower ones.
    pub priority: i32,
    /// Fails the pass unless it begins within this time.
    pub queue_timeout: Option<Duration>,
    /// Fails the pass unless it ends within this time.
    pub deadline: Option<Duration>,
    /// Whether it may use and feed the prefix cache.
    pub uses_prefix_cache: bool,
    /// Separates its cached pages from those of requests with another salt.
    pub cache_salt: u64,
    /// The adapter to compute with.
    pub adapter: Option<AdapterId>,
    /// Non-token inputs among the tokens, in the order of their places.
    pub media: Arc<[Media]>,
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
            media: Arc::new([]),
        }
    }
}

/// The configuration of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Maximum sequences in a batch; clamped to the executor's limit.
    pub max_running: usize,
    /// Maximum tokens of a step; clamped to the executor's limit.
    pub max_step_tokens: usize,
    /// Maximum number of waiting sequences.
    pub max_queued: usize,
    /// Maximum number of waiting prompt tokens.
    pub max_queued_tokens: usize,
    /// Maximum slowdown of a step by prefills in it, in percent: with 100, a step takes up to twice the time
    /// of a step that decodes all sequences, including those in prefill. It bounds the time between two
    /// tokens of a running stream relative to that time, however many prompts arrive at once; and one early
    /// stream does not make many prompts wait long. The engine measures its steps and sizes the prefill
    /// chunks accordingly. With 0, prompts get the time that their sequences would take if they decoded
    /// already, and at least one token.
    pub max_stall_percent: u32,
    /// Number of events that a stream buffers before its sequence is paused; no event is ever dropped.
    pub stream_buffer: usize,
    /// 1, or 2 to plan and submit a step while the previous one still runs; `None` uses the executor's
    /// preference. 2 is useful if the executor works outside of the engine's thread; it costs one row of
    /// wasted work after each stop token.
    pub steps_in_flight: Option<usize>,
    /// Whether the prefix cache is used.
    pub uses_prefix_cache: bool,
    /// Maximum batches of [`PageEvent`](crate::PageEvent)s that wait for their reader; `None` disables
    /// events.
    pub max_page_event_batches: Option<usize>,
    /// Separates models in the prefix cache: a hash of the weights and everything else that changes K and V.
    pub model_salt: u64,
    /// Whether and how sequences draft tokens. With two steps in flight, a step with drafts waits for the
    /// tokens of the previous one; with [`Speculation::Auto`] only if that pays.
    pub speculation: Speculation,
    /// How sequences continue when the context is full; `None` ends them there. Without
    /// [`max_tokens`](GenerateParams::max_tokens) they then continue until a stop token.
    pub context_shift: Option<ContextShift>,
    /// The store that keeps pages of the prefix cache outside of the engine, for a later engine to find.
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

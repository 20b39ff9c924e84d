//! [`EngineError`]: every way in which a request can fail.
//!
//! One enum covers immediate refusals and later failures, because callers handle both in the same place.
//! Invariant: a variant carries the facts that a caller needs to act, including both numbers of a limit.

use std::time::Duration;

use tokenmill_backend::{AdapterError, AdapterId, RowError, SamplingParamsError, StepError};

use crate::masks::constraint::ConstraintFailure;

/// The reason why a request was refused or failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The system starts no thread for the engine.
    #[error("cannot start the engine's thread: {kind}")]
    NoThread {
        /// The system's reason.
        kind: std::io::ErrorKind,
    },
    /// The prompt has no token.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// A batch has no prompt.
    #[error("prompts cannot be empty")]
    EmptyBatch,
    /// The prompt does not fit the context.
    #[error("the prompt has {provided} tokens, but the context holds {maximum}")]
    ContextLimitExceeded {
        /// Tokens of the prompt.
        provided: usize,
        /// Tokens of the context.
        maximum: usize,
    },
    /// The request would not fit even if it had the whole KV pool.
    #[error(
        "the request needs {needed_pages} KV pages, but the pool has {n_pages}; ask for fewer tokens or enlarge it"
    )]
    PoolTooSmall {
        /// Number of pages needed.
        needed_pages: usize,
        /// Number of pages in the pool.
        n_pages: usize,
    },
    /// A token of the prompt is not in the vocabulary.
    #[error("token {index} of the prompt has id {id}, but the vocabulary has {n_vocab} tokens")]
    UnknownToken {
        /// Index in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingParamsError),
    /// Bias and stop tokens forbid every token.
    #[error("`logit_bias` forbids every token; leave at least one")]
    NothingAllowed,
    /// The number of samples is 0 or too large.
    #[error("{found} samples were requested, expected 1 to {maximum}")]
    SampleCount {
        /// Number of samples requested.
        found: u32,
        /// Maximum number of samples per request.
        maximum: u32,
    },
    /// The given tokens of samples are not in the vocabulary, are constrained, or would arrive too late for
    /// the next step.
    #[error("an answer that is given takes tokens of the vocabulary, no constraint, and one step in flight")]
    CannotFollow,
    /// A forward pass requested rows beyond its tokens.
    #[error("rows from position {from} were requested, but there are {n_tokens} tokens")]
    RowsOutOfRange {
        /// First row requested.
        from: usize,
        /// Number of tokens.
        n_tokens: usize,
    },
    /// The model embeds or ranks texts.
    #[error("this model embeds or ranks texts, and predicts no tokens")]
    PredictsNoTokens,
    /// The prompt has non-token inputs, but the model or its device accepts only tokens.
    #[error("this model, or the device it is on, takes no images")]
    TakesNoMedia,
    /// Non-token inputs overlap, or lie outside the prompt.
    #[error(
        "medium {index} of the prompt does not lie in its {n_tokens} tokens, behind the medium before it"
    )]
    MediaOutOfPlace {
        /// Index among the prompt's media.
        index: usize,
        /// Tokens of the prompt.
        n_tokens: usize,
    },
    /// Non-token inputs have another width than the model's.
    #[error("the rows of medium {index} are {found} wide, those of the model {expected}")]
    MediaWidth {
        /// Index among the prompt's media.
        index: usize,
        /// Width of the model's inputs.
        expected: usize,
        /// Width of the rows.
        found: usize,
    },
    /// Inputs that must be computed together do not fit in a step or a window.
    #[error(
        "medium {index} of the prompt has {found} rows, which have to be in one step of at most {maximum}; raise --ubatch-size"
    )]
    MediaTooLong {
        /// Index among the prompt's media.
        index: usize,
        /// Number of its rows.
        found: usize,
        /// Maximum number of rows.
        maximum: usize,
    },
    /// The adapter of the request is not loaded.
    #[error("adapter {id} is not loaded")]
    UnknownAdapter {
        /// The adapter.
        id: AdapterId,
    },
    /// An adapter could not be loaded.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// Too many requests are waiting.
    #[error("{queued} sequences wait already, the limit is {maximum}; try again later")]
    QueueFull {
        /// Number of waiting sequences.
        queued: usize,
        /// The limit.
        maximum: usize,
    },
    /// Too many prompt tokens are waiting.
    #[error(
        "{queued} prompt tokens wait already and the request adds {provided}, the limit is {maximum}; try again later"
    )]
    QueueTokensFull {
        /// Number of waiting tokens.
        queued: usize,
        /// Tokens of the request.
        provided: usize,
        /// The limit.
        maximum: usize,
    },
    /// The engine accepts no more requests because it is shutting down.
    #[error("the engine is draining and takes no new requests")]
    Draining,
    /// The engine has ended.
    #[error("the engine has stopped")]
    Stopped,
    /// The request did not begin before its deadline.
    #[error("the request waited for {waited:?} without beginning")]
    QueueTimeout {
        /// How long it waited.
        waited: Duration,
    },
    /// The request did not end before its deadline.
    #[error("the deadline passed after {elapsed:?}")]
    DeadlineExceeded {
        /// How long the request was in the engine.
        elapsed: Duration,
    },
    /// No token could be sampled for this sequence.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The constraint of the sample could not continue.
    #[error("the constraint cannot be followed: {0}")]
    Constraint(#[source] ConstraintFailure),
    /// The step that the sequence took part in failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The memory of sequences was requested, but the executor cannot provide it.
    #[error("the memory of this device cannot be read or written")]
    MemoryNotReadable,
    /// The memory of a prefix cannot be pinned.
    #[error(
        "the prefix needs {needed} pages or states that nobody uses, and {n_available} are there; try again later, or enlarge the KV cache"
    )]
    NoRoomForPrefix {
        /// Number of pages or states needed.
        needed: usize,
        /// Number of pages or states available.
        n_available: usize,
    },
    /// Bytes were written to a prefix that are not the parts that it lacks.
    #[error("the bytes written to the prefix are not those of the parts that it lacks")]
    BadParts,
    /// Throughput was requested before anything was measured.
    #[error("the engine is not warmed up; run its calibration first")]
    NotWarmedUp,
}

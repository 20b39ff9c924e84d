//! [`EngineError`]: every way in which a request can fail.
//!
//! One enum for what is refused at once and for what fails later, because callers answer both in the same place.
//! Invariant: a variant carries the facts a caller needs to act, both numbers of a limit included.

use std::time::Duration;

use tokenmill_backend::{AdapterError, AdapterId, RowError, SamplingParamsError, StepError};

use crate::constraint::ConstraintFailure;

/// Why a request was refused or failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
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
    /// The request would not fit even if it had the whole KV pool to itself.
    #[error(
        "the request needs {needed_pages} KV pages, but the pool has {n_pages}; ask for fewer tokens or enlarge it"
    )]
    PoolTooSmall {
        /// Pages it needs.
        needed_pages: usize,
        /// Pages there are.
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
    #[error("{found} samples were asked for, expected 1 to {maximum}")]
    SampleCount {
        /// Samples asked for.
        found: u32,
        /// Samples that a request may have.
        maximum: u32,
    },
    /// What samples are to say is not in the vocabulary, is constrained, or would come too late for the next step.
    #[error("an answer that is given takes tokens of the vocabulary, no constraint, and one step in flight")]
    CannotFollow,
    /// A forward pass was asked for rows beyond its tokens.
    #[error("rows from position {from} were asked for, but there are {n_tokens} tokens")]
    RowsOutOfRange {
        /// First row asked for.
        from: usize,
        /// Tokens there are.
        n_tokens: usize,
    },
    /// The model embeds or ranks texts.
    #[error("this model embeds or ranks texts, and predicts no tokens")]
    PredictsNoTokens,
    /// The prompt has inputs that are no tokens, and the model or its device takes tokens alone.
    #[error("this model, or the device it is on, takes no images")]
    TakesNoMedia,
    /// Inputs that are no tokens overlap, or lie outside the prompt.
    #[error(
        "medium {index} of the prompt does not lie in its {n_tokens} tokens, behind the medium before it"
    )]
    MediaOutOfPlace {
        /// Index among the prompt's media.
        index: usize,
        /// Tokens of the prompt.
        n_tokens: usize,
    },
    /// Inputs that are no tokens are not as wide as the model's.
    #[error("the rows of medium {index} are {found} wide, those of the model {expected}")]
    MediaWidth {
        /// Index among the prompt's media.
        index: usize,
        /// Width of the model's inputs.
        expected: usize,
        /// Width of the rows.
        found: usize,
    },
    /// Inputs that have to be computed together do not fit a step, or a window.
    #[error(
        "medium {index} of the prompt has {found} rows, which have to be in one step of at most {maximum}; raise --ubatch-size"
    )]
    MediaTooLong {
        /// Index among the prompt's media.
        index: usize,
        /// Its rows.
        found: usize,
        /// Rows that fit.
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
    /// Too many requests wait already.
    #[error("{queued} sequences wait already, the limit is {maximum}; try again later")]
    QueueFull {
        /// Sequences that wait.
        queued: usize,
        /// The limit.
        maximum: usize,
    },
    /// Too many prompt tokens wait already.
    #[error(
        "{queued} prompt tokens wait already and the request adds {provided}, the limit is {maximum}; try again later"
    )]
    QueueTokensFull {
        /// Tokens that wait.
        queued: usize,
        /// Tokens of the request.
        provided: usize,
        /// The limit.
        maximum: usize,
    },
    /// The engine takes no more requests because it is shutting down.
    #[error("the engine is draining and takes no new requests")]
    Draining,
    /// The engine has ended.
    #[error("the engine has stopped")]
    Stopped,
    /// The request did not begin in time.
    #[error("the request waited for {waited:?} without beginning")]
    QueueTimeout {
        /// How long it waited.
        waited: Duration,
    },
    /// The request did not end in time.
    #[error("the deadline passed after {elapsed:?}")]
    DeadlineExceeded {
        /// How long the request was in the engine.
        elapsed: Duration,
    },
    /// No token could be sampled for this sequence.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The constraint of the sample could not be followed.
    #[error("the constraint cannot be followed: {0}")]
    Constraint(#[source] ConstraintFailure),
    /// The step that the sequence took part in failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The memory of sequences was asked for, and the executor does not give it.
    #[error("the memory of this device cannot be read or written")]
    MemoryNotReadable,
    /// The memory of a prefix cannot be held.
    #[error(
        "the prefix needs {needed} pages or states that nobody uses, and {n_available} are there; try again later, or enlarge the KV cache"
    )]
    NoRoomForPrefix {
        /// Pages or states that it needs.
        needed: usize,
        /// Those that can be had.
        n_available: usize,
    },
    /// The snapshots of a prefix that is to be written are not such that this model could have them.
    #[error("the recurrent states of the prefix are not those of this model")]
    BadSnapshots,
    /// The throughput was asked for before anything was measured.
    #[error("the engine is not warmed up; run its calibration first")]
    NotWarmedUp,
}

//! [`Outcome`]: an event of a sequence, as the scheduler reports it.
//!
//! The scheduler also reports ends that no step caused. Invariant: an [`Outcome::Ended`] is the last of its
//! sequence.

use crate::{arena::SeqId, plan::sequence::MissReason};

/// The result of one row of a step's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowResult {
    /// The inputs are in the KV store, and nothing was sampled. After a draft token: there was no mask to
    /// sample with.
    Advanced,
    /// This token was sampled.
    Token(u32),
    /// Nothing could be sampled, and the contents of its pages are invalid.
    Failed,
}

/// An event of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has one more token.
    Token {
        /// The sequence.
        seq: SeqId,
        /// The logit row of the step that it comes from.
        logit_row: u32,
        /// The token.
        id: u32,
    },
    /// The context was full, and the sequence continues with fewer tokens.
    Shifted {
        /// The sequence.
        seq: SeqId,
        /// Number of dropped tokens.
        n_dropped: usize,
    },
    /// The sequence has ended and holds nothing any more.
    Ended {
        /// The sequence.
        seq: SeqId,
        /// The reason.
        end: End,
        /// Its counts.
        summary: SeqSummary,
    },
}

/// The reason why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A stop token was sampled, or nothing may follow its last token.
    Stop,
    /// The maximum length was reached, or all requested rows were read.
    Length,
    /// The caller cancelled it.
    Cancelled,
    /// It did not begin before its deadline.
    QueueTimeout,
    /// It did not end before its deadline.
    DeadlineExceeded,
    /// The step that it took part in failed.
    StepFailed,
    /// Its row of a step failed.
    RowFailed,
    /// Its constraint could not continue.
    ConstraintFailed,
}

impl End {
    /// Returns whether its caller gets a result rather than an error.
    pub(crate) fn is_finish(self) -> bool {
        matches!(self, Self::Stop | Self::Length | Self::Cancelled)
    }
}

/// Counts of a sequence that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqSummary {
    /// Tokens of its prompt.
    pub n_prompt: usize,
    /// Number of generated tokens; the stop token is not counted.
    pub n_generated: usize,
    /// Number of tokens dropped when the context was full.
    pub n_dropped: usize,
    /// Number of prompt tokens that came from the prefix cache or from the sequence that it was forked from.
    pub n_cached: usize,
    /// The reason why no more came from there.
    pub miss: Option<MissReason>,
    /// Number of its draft tokens.
    pub n_drafted: usize,
    /// Number of accepted draft tokens.
    pub n_accepted: usize,
    /// Whether it ever began.
    pub has_begun: bool,
}

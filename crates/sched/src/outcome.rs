//! [`Outcome`]: news of a sequence, as the scheduler reports it.
//!
//! Separate because the scheduler reports ends, too, which no step made. Invariant: an [`Outcome::Ended`] is the last of its
//! sequence.

use crate::{arena::SeqId, sequence::MissReason};

/// What a step did for one row of its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowResult {
    /// Its inputs are in the KV store; nothing was sampled. Behind a guess: there was no mask to sample with.
    Advanced,
    /// This token was sampled.
    Token(u32),
    /// Nothing could be sampled: what its pages hold is not to be trusted.
    Failed,
}

/// News of a sequence.
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
    /// Its context was full: it continues behind fewer tokens.
    Shifted {
        /// The sequence.
        seq: SeqId,
        /// Tokens that it lost.
        n_dropped: usize,
    },
    /// It has ended and holds nothing any more.
    Ended {
        /// The sequence.
        seq: SeqId,
        /// Why.
        end: End,
        /// What it was.
        summary: SeqSummary,
    },
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A stop token was sampled, or nothing may follow its last token.
    Stop,
    /// It is as long as it may get, or everything asked of it was read.
    Length,
    /// Its caller wanted no more.
    Cancelled,
    /// It did not begin in time.
    QueueTimeout,
    /// It did not end in time.
    DeadlineExceeded,
    /// The step it took part in failed.
    StepFailed,
    /// Its row of a step failed.
    RowFailed,
    /// What it may be made of could not be followed.
    ConstraintFailed,
}

impl End {
    /// Whether its caller gets a result, not an error.
    pub(crate) fn is_finish(self) -> bool {
        matches!(self, Self::Stop | Self::Length | Self::Cancelled)
    }
}

/// Counts of a sequence that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqSummary {
    /// Tokens of its prompt.
    pub n_prompt: usize,
    /// Tokens it generated, the stop token not counted.
    pub n_generated: usize,
    /// Tokens that it lost where its context was full.
    pub n_dropped: usize,
    /// Tokens of its prompt that came from the prefix cache or from the sequence it is a fork of.
    pub n_cached: usize,
    /// Why no more came from there.
    pub miss: Option<MissReason>,
    /// Tokens of its drafts.
    pub n_drafted: usize,
    /// Those among them that were accepted.
    pub n_accepted: usize,
    /// Whether it ever began.
    pub has_begun: bool,
}

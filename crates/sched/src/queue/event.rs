//! [`Event`]: what callers learn about their requests, and [`RequestId`], which identifies one.
//!
//! Plain data for both sides of the mailbox. Invariant: an event names the sample that it is about.

use std::time::Duration;

use tokenmill_backend::TokenLogprob;

use crate::{error::EngineError, plan::sequence::MissReason};

/// Identifies a request for the lifetime of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(u64);

impl RequestId {
    /// Returns the id with this number; the mailbox counts them.
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    /// The id of a request that never reached the engine.
    pub(crate) const NONE: Self = Self(u64::MAX);
}

/// An event of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A part of the prompt was computed; see
    /// [`GenerateParams::reports_prefill`](crate::GenerateParams::reports_prefill).
    Prefill(Prefill),
    /// A sample has one more token.
    Token(Token),
    /// Rows of a forward pass, in order.
    Rows(Rows),
    /// A sample ended normally.
    Finished(Finished),
    /// A sample failed.
    Failed {
        /// The sample.
        sample: u32,
        /// The error.
        error: EngineError,
    },
}

/// The progress of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefill {
    /// The sample that computes the prompt; the others of its request share it.
    pub sample: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of them that came from the prefix cache.
    pub cached_tokens: usize,
    /// Number of them whose keys and values are there, including those from the prefix cache.
    pub done_tokens: usize,
    /// From submission to its start.
    pub queued: Duration,
    /// Time since its start.
    pub elapsed: Duration,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The sample it belongs to.
    pub sample: u32,
    /// Its id.
    pub id: u32,
    /// Its log-probability, if requested.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place, most likely first, as many as requested.
    pub top: Vec<TokenLogprob>,
    /// Time since submission, by the clock of [`Timings`].
    pub time: Duration,
}

/// Consecutive rows of a forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Position of the first row.
    pub first_position: usize,
    /// Number of values per row.
    pub width: usize,
    /// The rows, concatenated.
    pub values: Vec<f32>,
}

/// The reason why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token was sampled, or the caller found a stop string
    /// ([`Generation::stop`](crate::Generation::stop)).
    Stop,
    /// The maximum length was reached, or a forward pass has read all its rows.
    Length,
    /// The caller cancelled it.
    Cancelled,
}

/// The end of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The sample.
    pub sample: u32,
    /// The reason why it ended.
    pub reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Time measurements.
    pub timings: Timings,
}

/// Token counts of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of prompt tokens that came from the prefix cache or from another sample of the request.
    pub cached_tokens: usize,
    /// The reason why no more came from there; `None` if all whole pages did.
    pub cache_miss: Option<MissReason>,
    /// Number of generated tokens; a stop token is not counted.
    pub completion_tokens: usize,
    /// Number of tokens dropped when the context was full; see [`ContextShift`](crate::ContextShift).
    pub dropped_tokens: usize,
    /// Number of verified draft tokens.
    pub drafted_tokens: usize,
    /// Number of draft tokens that matched the sampled ones; each saved a step.
    pub accepted_tokens: usize,
}

/// Time measurements of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From submission to its start.
    pub queued: Duration,
    /// From its start to its first token.
    pub prefill: Duration,
    /// From submission to its first token; zero if there is none.
    pub first_token: Duration,
    /// From submission to its end.
    pub total: Duration,
    /// Time of each token since submission; empty unless
    /// [`GenerateParams::traces_tokens`](crate::GenerateParams::traces_tokens).
    pub tokens: Vec<Duration>,
}

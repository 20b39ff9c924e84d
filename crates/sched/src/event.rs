//! [`Event`]: what callers are told about their requests, and [`RequestId`], which names one.
//!
//! Plain data, separate from the streams that carry it: both sides of the mailbox speak of it. Invariant: an event names the
//! sample that it is about.

use std::time::Duration;

use tokenmill_backend::TokenLogprob;

use crate::{error::EngineError, sequence::MissReason};

/// Names a request for as long as the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(u64);

impl RequestId {
    /// The request of this number; the mailbox counts them.
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    /// Names a request that the engine never got to see.
    pub(crate) const NONE: Self = Self(u64::MAX);
}

/// News of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A sample has one more token.
    Token(Token),
    /// Rows of a forward pass, in order.
    Rows(Rows),
    /// A sample ended as it should.
    Finished(Finished),
    /// A sample failed.
    Failed {
        /// The sample.
        sample: u32,
        /// Why.
        error: EngineError,
    },
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The sample it belongs to.
    pub sample: u32,
    /// Its id.
    pub id: u32,
    /// Its log-probability, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place, most likely first, as many as asked for.
    pub top: Vec<TokenLogprob>,
}

/// Consecutive rows of a forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Position of the first row.
    pub first_position: usize,
    /// Numbers of a row.
    pub width: usize,
    /// The rows, one after the other.
    pub values: Vec<f32>,
}

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token came, or its caller found a stop string ([`Generation::stop`](crate::Generation::stop)).
    Stop,
    /// It is as long as it may get; a forward pass has read all its rows.
    Length,
    /// Its caller wanted no more.
    Cancelled,
}

/// The end of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The sample.
    pub sample: u32,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it took.
    pub usage: Usage,
    /// How long that took.
    pub timings: Timings,
}

/// Tokens of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those among them that came from the prefix cache or from another sample of the request.
    pub cached_tokens: usize,
    /// Why no more came from there; `None` when all whole pages did.
    pub cache_miss: Option<MissReason>,
    /// Tokens generated; a stop token is not counted.
    pub completion_tokens: usize,
    /// Tokens that were dropped where the context was full; see [`ContextShift`](crate::ContextShift).
    pub dropped_tokens: usize,
    /// Tokens that were guessed ahead and verified.
    pub drafted_tokens: usize,
    /// Those among them that were what was sampled; each saved a step.
    pub accepted_tokens: usize,
}

/// Times of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From submission until it began.
    pub queued: Duration,
    /// From its beginning to its first token.
    pub prefill: Duration,
    /// From submission to its first token; zero where there is none.
    pub first_token: Duration,
    /// From submission to its end.
    pub total: Duration,
    /// Each token's time since submission; empty unless
    /// [`GenerateParams::traces_tokens`](crate::GenerateParams::traces_tokens).
    pub tokens: Vec<Duration>,
}

//! [`Stopwatch`]: records the times of a sequence's events.
//!
//! Invariant: it reads no clock; all times are microseconds since the engine began, taken once per step and
//! given as data.

use std::time::Duration;

use crate::queue::event::Timings;

#[derive(Clone, Debug, Default)]
pub(crate) struct Stopwatch {
    submitted_us: u64,
    begun_us: Option<u64>,
    first_token_us: Option<u64>,
    /// Recorded only if a trace was requested; an empty vector costs nothing.
    token_us: Vec<u64>,
    traces_tokens: bool,
}

impl Stopwatch {
    pub(crate) fn new(submitted_us: u64, traces_tokens: bool) -> Self {
        Self {
            submitted_us,
            traces_tokens,
            ..Self::default()
        }
    }

    /// Records its start; only the first call counts.
    pub(crate) fn begin(&mut self, now_us: u64) {
        self.begun_us.get_or_insert(now_us);
    }

    /// Records a token. Returns its time since submission.
    pub(crate) fn token(&mut self, now_us: u64) -> Duration {
        self.first_token_us.get_or_insert(now_us);
        if self.traces_tokens {
            self.token_us.push(now_us);
        }
        self.elapsed(now_us)
    }

    pub(crate) fn elapsed(&self, now_us: u64) -> Duration {
        Duration::from_micros(now_us.saturating_sub(self.submitted_us))
    }

    /// Returns the times from submission to its start, and since then.
    pub(crate) fn since_start(&self, now_us: u64) -> (Duration, Duration) {
        let begun_us = self.begun_us.unwrap_or(now_us);
        (
            self.elapsed(begun_us),
            Duration::from_micros(now_us.saturating_sub(begun_us)),
        )
    }

    pub(crate) fn finish(&self, now_us: u64) -> Timings {
        let begun_us = self.begun_us.unwrap_or(now_us);
        Timings {
            queued: self.elapsed(begun_us),
            prefill: Duration::from_micros(self.first_token_us.unwrap_or(now_us).saturating_sub(begun_us)),
            first_token: self
                .first_token_us
                .map_or(Duration::ZERO, |first| self.elapsed(first)),
            total: self.elapsed(now_us),
            tokens: self.token_us.iter().map(|&at| self.elapsed(at)).collect(),
        }
    }
}

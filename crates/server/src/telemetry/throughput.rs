//! [`Throughput`]: tokens per second, between two queries.
//!
//! The counters of the engine only count. Invariant: the time between two queries is at least [`MIN_SPAN`],
//! so that one step more or less makes little difference, however often clients ask.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Shortest time that a rate is made from.
const MIN_SPAN: Duration = Duration::from_secs(1);

/// The rate of a counter.
#[derive(Debug)]
pub(crate) struct Throughput(Mutex<Mark>);

#[derive(Debug)]
struct Mark {
    at: Instant,
    n_tokens: u64,
    per_second: f64,
}

impl Throughput {
    /// Begins with a counter of 0.
    pub(crate) fn since(at: Instant) -> Self {
        Self(Mutex::new(Mark {
            at,
            n_tokens: 0,
            per_second: 0.0,
        }))
    }

    /// Tokens per second since the last question, where the counter is `n_tokens` at `now`; a question sooner than [`MIN_SPAN`] after the
    /// last is answered as that one.
    pub(crate) fn ask(&self, n_tokens: u64, now: Instant) -> f64 {
        let mut mark = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let span = now.saturating_duration_since(mark.at);
        if span >= MIN_SPAN {
            let per_second = n_tokens.saturating_sub(mark.n_tokens) as f64 / span.as_secs_f64();
            *mark = Mark {
                at: now,
                n_tokens,
                per_second,
            };
        }
        mark.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_time_between_questions() {
        let begun = Instant::now();
        let rate = Throughput::since(begun);
        let ask = |n_tokens: u64, ms: u64| rate.ask(n_tokens, begun + Duration::from_millis(ms));
        assert_eq!(ask(50, 500), 0.0);
        assert_eq!(ask(100, 2000), 50.0);
        assert_eq!(ask(400, 2500), 50.0);
        assert_eq!(ask(400, 4000), 150.0);
        assert_eq!(ask(400, 5000), 0.0);
    }
}

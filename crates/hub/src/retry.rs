//! [`Fault`] and [`Attempts`]: what is retried, how often, and after which pause.
//!
//! Requests and parts of files follow the same rules. Invariant: the number of attempts without progress is
//! bounded, and so is every pause.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{HubError, PullEvent, PullObserver};

/// Maximum attempts of a part of a file without progress.
const MAX_TRIES: u32 = 6;
/// Maximum pause that this program chooses.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Maximum pause that a server may request.
const MAX_ASKED_PAUSE: Duration = Duration::from_mins(2);

/// The reason why an attempt failed.
pub(crate) enum Fault {
    /// Another attempt may succeed, after the pause that the server requested.
    Again {
        error: HubError,
        after: Option<Duration>,
    },
    /// No other attempt can succeed.
    Final(HubError),
}

impl Fault {
    /// Returns a transient fault.
    pub(crate) fn again(error: HubError) -> Self {
        Self::Again { error, after: None }
    }
}

impl From<HubError> for Fault {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

/// Counts attempts.
pub(crate) struct Attempts<'a> {
    n_failed: u32,
    max_tries: u32,
    pause: Duration,
    waits_for_network: bool,
    observer: &'a dyn PullObserver,
    is_aborted: &'a AtomicBool,
}

impl<'a> Attempts<'a> {
    /// Starts a count with `pause` as the first pause. If `is_aborted` becomes true, pauses end at once.
    pub(crate) fn new(pause: Duration, observer: &'a dyn PullObserver, is_aborted: &'a AtomicBool) -> Self {
        Self {
            n_failed: 0,
            max_tries: MAX_TRIES,
            pause,
            waits_for_network: true,
            observer,
            is_aborted,
        }
    }

    /// Limits the attempts: a waiting person should soon learn that there is no network.
    pub(crate) fn at_most(self, max_tries: u32) -> Self {
        Self { max_tries, ..self }
    }

    /// Makes no further attempt if there is no connection, unless `waits`.
    pub(crate) fn waiting_for_network(self, waits: bool) -> Self {
        Self {
            waits_for_network: waits,
            ..self
        }
    }

    /// Restarts the count after progress.
    pub(crate) fn reset(&mut self) {
        self.n_failed = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error, if there is no further attempt.
    pub(crate) fn failed(&mut self, fault: Fault) -> Result<(), HubError> {
        let (error, after) = match fault {
            Fault::Again { error, after } => (error, after),
            Fault::Final(error) => return Err(error),
        };
        self.n_failed += 1;
        if self.n_failed >= self.max_tries
            || !self.waits_for_network && matches!(error, HubError::NoConnection { .. })
            || self.is_aborted.load(Ordering::Relaxed)
            || after.is_some_and(|after| after > MAX_ASKED_PAUSE)
        {
            return Err(match error {
                HubError::ServerFailed { url, status, .. } => HubError::ServerFailed {
                    url,
                    status,
                    n_tries: self.n_failed,
                },
                error => error,
            });
        }
        let own = self.pause.saturating_mul(1 << (self.n_failed - 1)).min(MAX_PAUSE);
        let pause = after.unwrap_or(own);
        self.observer.event(PullEvent::Retrying {
            reason: &error.to_string(),
            pause,
        });
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if self.is_aborted.load(Ordering::Relaxed) {
                return Err(error);
            }
            if self.observer.is_cancelled() {
                return Err(HubError::Cancelled);
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }

    /// Repeats the work until it succeeds.
    ///
    /// # Errors
    /// The error, if there is no further attempt.
    pub(crate) fn run<T>(mut self, mut work: impl FnMut() -> Result<T, Fault>) -> Result<T, HubError> {
        loop {
            match work() {
                Ok(value) => return Ok(value),
                Err(fault) => self.failed(fault)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> HubError {
        HubError::NoConnection {
            host: "h".to_owned(),
            reason: "r".to_owned(),
        }
    }

    #[test]
    fn attempts_are_bounded_and_a_final_fault_is_the_last() {
        let is_aborted = AtomicBool::new(false);
        let attempts = || Attempts::new(Duration::ZERO, &(), &is_aborted);
        let mut n_tries = 0;
        let result: Result<(), _> = attempts().run(|| {
            n_tries += 1;
            Err(Fault::again(broken()))
        });
        assert!(result.is_err());
        assert_eq!(n_tries, MAX_TRIES);
        let result: Result<(), _> = attempts().run(|| {
            n_tries += 1;
            Err(broken().into())
        });
        assert!(result.is_err());
        assert_eq!(n_tries, MAX_TRIES + 1);
    }

    #[test]
    fn a_network_is_waited_for_only_where_that_is_wished() {
        let is_aborted = AtomicBool::new(false);
        let n_tries = |error: fn() -> HubError| {
            let mut n_tries = 0;
            let attempts = Attempts::new(Duration::ZERO, &(), &is_aborted).waiting_for_network(false);
            let result: Result<(), _> = attempts.run(|| {
                n_tries += 1;
                Err(Fault::again(error()))
            });
            assert!(result.is_err());
            n_tries
        };
        assert_eq!(n_tries(broken), 1);
        let busy = || HubError::ServerFailed {
            url: "u".to_owned(),
            status: 503,
            n_tries: 1,
        };
        assert_eq!(n_tries(busy), MAX_TRIES);
    }

    #[test]
    fn a_server_cannot_ask_for_hours() {
        let is_aborted = AtomicBool::new(false);
        let mut attempts = Attempts::new(Duration::ZERO, &(), &is_aborted);
        let after = Some(Duration::from_hours(1));
        assert!(
            attempts
                .failed(Fault::Again {
                    error: broken(),
                    after
                })
                .is_err()
        );
    }
}

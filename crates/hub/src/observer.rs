//! [`PullObserver`]: receives the events of a download.
//!
//! The crate itself prints nothing. Invariant: calls come from any thread and are short; an observer can end
//! a download, but not influence it otherwise.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// An event of a download.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum PullEvent<'a> {
    /// The number of received bytes of all files in the request. It decreases if a file must start again.
    Progress {
        /// Received bytes.
        done_bytes: u64,
        /// Total bytes of all files.
        total_bytes: u64,
    },
    /// Another program is downloading this file; the download waits for it.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// Something failed and is tried again after a pause.
    Retrying {
        /// The failure.
        reason: &'a str,
        /// The pause.
        pause: Duration,
    },
    /// A file is downloaded again from its beginning.
    Restarting {
        /// The file.
        file: &'a str,
        /// The reason.
        reason: &'a str,
    },
    /// All bytes of a file have arrived, and its hash matches.
    Checked {
        /// The file.
        file: &'a str,
    },
}

/// Receives the events of a download.
pub trait PullObserver: Sync {
    /// Receives an event.
    fn event(&self, event: PullEvent<'_>);

    /// Returns whether the download should end early, with
    /// [`HubError::Cancelled`](crate::HubError::Cancelled). It is called between pieces of a file, even while
    /// hashing, in pauses, and while waiting for another program; received bytes stay.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Ignores all events.
impl PullObserver for () {
    fn event(&self, _event: PullEvent<'_>) {}
}

/// Counts the received bytes of all files in a request.
pub(crate) struct Tally<'a> {
    done_bytes: AtomicU64,
    total_bytes: u64,
    pub(crate) observer: &'a dyn PullObserver,
}

impl<'a> Tally<'a> {
    /// Starts a count at zero.
    pub(crate) fn new(total_bytes: u64, observer: &'a dyn PullObserver) -> Self {
        Self {
            done_bytes: AtomicU64::new(0),
            total_bytes,
            observer,
        }
    }

    /// Adds received bytes.
    pub(crate) fn add(&self, n_bytes: u64) {
        let done_bytes = self.done_bytes.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        self.tell(done_bytes);
    }

    /// Subtracts bytes that must be received again.
    pub(crate) fn take_back(&self, n_bytes: u64) {
        let done_bytes = self.done_bytes.fetch_sub(n_bytes, Ordering::Relaxed) - n_bytes;
        self.tell(done_bytes);
    }

    fn tell(&self, done_bytes: u64) {
        self.observer.event(PullEvent::Progress {
            done_bytes,
            total_bytes: self.total_bytes,
        });
    }
}

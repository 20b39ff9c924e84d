//! [`PullObserver`]: what is told while a model is downloaded.
//!
//! Separate because the crate itself prints nothing. Invariant: a call comes from any thread and is short; an observer can end a download,
//! and changes nothing else about it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// What happened.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum PullEvent<'a> {
    /// So many bytes of all files of the request are there now. The number falls where a file has to begin again.
    Progress {
        /// Bytes that are there.
        done_bytes: u64,
        /// Bytes of all files.
        total_bytes: u64,
    },
    /// Another program downloads this file; it is waited for.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// Something failed and is tried again after a pause.
    Retrying {
        /// What failed.
        reason: &'a str,
        /// The pause.
        pause: Duration,
    },
    /// A file is downloaded again from its beginning.
    Restarting {
        /// The file.
        file: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// All bytes of a file are there, and its hash is as announced.
    Checked {
        /// The file.
        file: &'a str,
    },
}

/// What is told while a model is downloaded.
pub trait PullObserver: Sync {
    /// Takes notice of an event.
    fn event(&self, event: PullEvent<'_>);

    /// Whether the download is to end early, with [`HubError::Cancelled`](crate::HubError::Cancelled). It is asked between pieces of a file,
    /// also where they are only hashed, in pauses, and while another program is waited for; what has arrived stays.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Takes notice of nothing.
impl PullObserver for () {
    fn event(&self, _event: PullEvent<'_>) {}
}

/// Counts the bytes of a request over all its files.
pub(crate) struct Tally<'a> {
    done_bytes: AtomicU64,
    total_bytes: u64,
    pub(crate) observer: &'a dyn PullObserver,
}

impl<'a> Tally<'a> {
    /// Nothing is there yet.
    pub(crate) fn new(total_bytes: u64, observer: &'a dyn PullObserver) -> Self {
        Self {
            done_bytes: AtomicU64::new(0),
            total_bytes,
            observer,
        }
    }

    /// More bytes are there.
    pub(crate) fn add(&self, n_bytes: u64) {
        let done_bytes = self.done_bytes.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        self.tell(done_bytes);
    }

    /// Bytes that were there are to come again.
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

//! [`Shutdown`]: the way from serving to ended.
//!
//! Invariant: it only ever moves forward: serving, draining, ended.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the server is ending. Shared by the listener, the health endpoints and the signal handler.
#[derive(Debug, Default)]
pub struct Shutdown {
    has_begun: AtomicBool,
    begin: tokio::sync::Notify,
}

impl Shutdown {
    /// Begins the end: not ready any more, no new connections, running answers finish.
    pub fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
        self.begin.notify_waiters();
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    /// Waits until it begins.
    pub async fn begun(&self) {
        let begun = self.begin.notified();
        tokio::pin!(begun);
        // Registered before the look at the flag, so that a begin in between is not missed.
        begun.as_mut().enable();
        if !self.has_begun() {
            begun.await;
        }
    }
}

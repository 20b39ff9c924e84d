//! [`Switch`]: turns something on while a function runs.
//!
//! Invariant: it is off again when the function returns, even after a panic.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Turns something off when it is dropped.
pub(super) struct Switch<'a>(&'a AtomicBool);

impl<'a> Switch<'a> {
    /// Turns something on.
    pub(super) fn turn_on(is_on: &'a AtomicBool) -> Self {
        is_on.store(true, SeqCst);
        Self(is_on)
    }
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

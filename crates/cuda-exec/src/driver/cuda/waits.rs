//! Waits for a [`Driver`]'s work: without a limit, with a watch, or within a limit.
//!
//! Invariant: a wait with a limit returns even if the work never ends, and the device is not used afterwards.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{Driver, pointer};
use crate::{
    driver::{Handle, codes},
    error::Result,
};

/// Decides, while the host waits, whether the work can still end.
pub(in crate::driver) trait Watch: std::fmt::Debug + Send + Sync {
    /// Called after this waiting time; an error ends the wait.
    fn look(&self, waited: Duration) -> Result<()>;
}

/// Number of polls without a pause. After them the host sleeps between polls, since other threads compute too.
const N_LOOKS: u32 = 10_000;
/// Pause between polls.
const PAUSE: Duration = Duration::from_micros(50);
/// Time between calls of the watch.
const WATCH_EVERY: Duration = Duration::from_millis(5);

impl Driver {
    /// Blocks until the work before `event` is done.
    pub(in crate::driver) fn synchronize(&self, event: Handle) -> Result<()> {
        self.enter("waiting for the device")?;
        let limit = Some(self.wait_limit_ms.load(Relaxed)).filter(|&ms| ms > 0);
        if limit.is_some() || self.watch.get().is_some() {
            return self.synchronize_watched(event, limit.map(Duration::from_millis));
        }
        // SAFETY: the event belongs to this context.
        let code = unsafe { (self.api.synchronize_event)(pointer(event)) };
        self.check("waiting for the device", code)
    }

    /// Does the same as [`Self::synchronize`] for work that may wait for other devices or never end.
    fn synchronize_watched(&self, event: Handle, limit: Option<Duration>) -> Result<()> {
        let began = Instant::now();
        let mut next_look = WATCH_EVERY;
        for n_asked in 0u32.. {
            // SAFETY: the event belongs to this context.
            let code = unsafe { (self.api.query_event)(pointer(event)) };
            if code != codes::NOT_READY {
                return self.check("waiting for the device", code);
            }
            let waited = began.elapsed();
            if waited >= next_look {
                next_look = waited + WATCH_EVERY;
                if let Some(watch) = self.watch.get() {
                    watch.look(waited)?;
                }
            }
            if let Some(limit) = limit.filter(|limit| waited >= *limit) {
                self.is_abandoned.store(true, Relaxed);
                let reason = format!("no answer within {} s", limit.as_secs_f32());
                return Err(self.poison.set("waiting for the device", reason));
            }
            if n_asked < N_LOOKS {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        unreachable!("a watch or a limit ends a wait before this")
    }

    /// Sets the watch of all further waits. A device has one watch.
    pub(in crate::driver) fn set_watch(&self, watch: Arc<dyn Watch>) {
        let was_free = self.watch.set(watch).is_ok();
        assert!(was_free, "a device is in one group");
    }

    /// Sets or removes the limit of further waits. A device that exceeds it is lost, and is never closed.
    pub(in crate::driver) fn limit_waits(&self, limit: Option<Duration>) {
        let ms = limit.map_or(0, |limit| (limit.as_millis() as u64).max(1));
        self.wait_limit_ms.store(ms, Relaxed);
    }

    /// Returns whether the device exceeded the limit of a wait.
    pub(in crate::driver) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Relaxed)
    }

    /// Sets whether all launches run in order, including those that could begin early.
    pub(in crate::driver) fn set_in_order(&self, is_in_order: bool) {
        self.is_in_order.store(is_in_order, Relaxed);
    }
}

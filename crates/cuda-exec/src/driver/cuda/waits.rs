//! How the host waits for a [`Driver`]'s work: without an end, watched, or within a limit.
//!
//! Separate from what is queued. Invariant: whoever waits for work that never ends comes back where there is a limit, and nothing is asked of the device after.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{Driver, pointer};
use crate::{
    driver::{Handle, codes},
    error::Result,
};

/// Says, while work is waited for, whether it may still end.
pub(in crate::driver) trait Watch: std::fmt::Debug + Send + Sync {
    /// Looks, after so much time. What it finds wrong ends the wait.
    fn look(&self, waited: Duration) -> Result<()>;
}

/// How often it is asked at once whether watched work is done; then with a pause, since other threads compute too.
const N_LOOKS: u32 = 10_000;
/// That pause.
const PAUSE: Duration = Duration::from_micros(50);
/// How often the watch is asked.
const WATCH_EVERY: Duration = Duration::from_millis(5);

impl Driver {
    /// Blocks until the work that `event` was last recorded behind is done.
    pub(in crate::driver) fn synchronize(&self, event: Handle) -> Result<()> {
        self.enter("waiting for the device")?;
        let limit = Some(self.wait_limit_ms.load(Relaxed)).filter(|&ms| ms > 0);
        if limit.is_some() || self.watch.get().is_some() {
            return self.synchronize_watched(event, limit.map(Duration::from_millis));
        }
        // SAFETY: the event is of this context.
        let code = unsafe { (self.api.synchronize_event)(pointer(event)) };
        self.check("waiting for the device", code)
    }

    /// As [`Self::synchronize`], where the work may wait for devices that do not come, or never end.
    fn synchronize_watched(&self, event: Handle, limit: Option<Duration>) -> Result<()> {
        let began = Instant::now();
        let mut next_look = WATCH_EVERY;
        for n_asked in 0u32.. {
            // SAFETY: the event is of this context.
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
        unreachable!("a watch or a limit ends a wait before it is asked for so long")
    }

    /// Watches all waits from now on. A device has one watch.
    pub(in crate::driver) fn set_watch(&self, watch: Arc<dyn Watch>) {
        let was_free = self.watch.set(watch).is_ok();
        assert!(was_free, "a device is in one group");
    }

    /// Limits waits from now on, or sets no limit. A device that does not answer within one is lost, and never closed.
    pub(in crate::driver) fn limit_waits(&self, limit: Option<Duration>) {
        let ms = limit.map_or(0, |limit| (limit.as_millis() as u64).max(1));
        self.wait_limit_ms.store(ms, Relaxed);
    }

    /// Whether the device did not answer within a limit.
    pub(in crate::driver) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Relaxed)
    }

    /// Says whether launches follow each other in order, those that could begin early too.
    pub(in crate::driver) fn set_in_order(&self, is_in_order: bool) {
        self.is_in_order.store(is_in_order, Relaxed);
    }
}

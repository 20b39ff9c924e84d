//! [`Board`]: the state that the engine's thread publishes while it runs.
//!
//! Readers never wait for a step, so health checks are answered even if the engine hangs. Invariant: the
//! engine's thread is the only writer.

use crate::{
    engine::step_times::StepTimes,
    masks::times::MaskTimes,
    pages::pool::{PagePool, PoolCounters},
    plan::scheduler::{Scheduler, SchedulerCounters, adapters::AdaptersInUse},
    sync::{AtomicU64, Mutex, Ordering},
};

/// A snapshot of the engine after its last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Number of sequences that take part in steps.
    pub n_running: usize,
    /// Number of sequences with slow consumers, or caught up and waiting for a slot in the batch; they keep
    /// their pages.
    pub n_paused: usize,
    /// Number of sequences that wait for pages or a slot in the batch, including preempted ones.
    pub n_waiting: usize,
    /// Number of KV pages in the pool.
    pub n_pages: usize,
    /// Number of pages that sequences hold.
    pub n_pages_in_use: usize,
    /// Number of pages that only the prefix cache holds.
    pub n_pages_idle: usize,
    /// Number of pages of the host tier in use.
    pub n_host_pages_used: usize,
    /// Number of pages in the separate group of layers with a window, or 0 if there is none. With such a
    /// group, the page counts above cover the other layers only.
    pub n_window_pages: usize,
    /// Number of those pages that sequences hold.
    pub n_window_pages_in_use: usize,
    /// Number of tokens handed to callers.
    pub generated_tokens: u64,
    /// Number of finished samples.
    pub finished: u64,
    /// Number of failed samples.
    pub failed: u64,
    /// Number of failed steps.
    pub failed_steps: u64,
    /// Number of failed rows of the draft model. It makes no more drafts for their sequences.
    pub failed_draft_rows: u64,
    /// Whether the draft model was disabled after too many failures.
    pub has_draft_failed: bool,
    /// Whether the draft model is an MTP layer of the model itself.
    pub drafts_from_hidden: bool,
    /// Times of the masks of constrained samples.
    pub masks: MaskTimes,
    /// Counters of the scheduler.
    pub scheduler: SchedulerCounters,
    /// Counters of the page pool.
    pub pool: PoolCounters,
    /// Counters of the pool of layers with a window, if they have a separate group.
    pub window_pool: PoolCounters,
}

impl EngineStats {
    /// Returns the fraction of pages that sequences hold, from 0 to 1. With two groups it is the larger
    /// fraction, since a sequence needs room in both.
    pub fn kv_usage(&self) -> f64 {
        let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        share(self.n_pages_in_use, self.n_pages).max(share(self.n_window_pages_in_use, self.n_window_pages))
    }
}

/// Counters that the core keeps itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) generated_tokens: u64,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    pub(crate) failed_steps: u64,
    pub(crate) failed_draft_rows: u64,
    pub(crate) has_draft_failed: bool,
    pub(crate) drafts_from_hidden: bool,
    pub(crate) masks: MaskTimes,
    /// Number of sequences that wait for their consumers before they begin.
    pub(crate) n_parked: usize,
    /// Number of requests that wait for pages from a store.
    pub(crate) n_fetching: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Board {
    /// Time of the last heartbeat, in microseconds since the engine began.
    heartbeat_us: AtomicU64,
    stats: Mutex<EngineStats>,
    adapters_in_use: Mutex<AdaptersInUse>,
    step_times: Mutex<StepTimes>,
}

impl Board {
    pub(crate) fn beat(&self, now_us: u64) {
        self.heartbeat_us.store(now_us, Ordering::Release);
    }

    pub(crate) fn heartbeat_us(&self) -> u64 {
        self.heartbeat_us.load(Ordering::Acquire)
    }

    pub(crate) fn publish(&self, scheduler: &Scheduler, tally: Tally) {
        let (pool, window_pool) = (scheduler.pool(), scheduler.window_pool());
        *self
            .stats
            .lock()
            .expect("nothing panics while it holds this lock") = EngineStats {
            n_running: scheduler.n_running(),
            n_paused: scheduler.n_paused() + tally.n_parked,
            n_waiting: scheduler.n_waiting().saturating_sub(tally.n_parked) + tally.n_fetching,
            n_pages: pool.n_pages(),
            n_pages_in_use: pool.n_in_use(),
            n_pages_idle: pool.n_idle(),
            n_host_pages_used: pool.n_host_used(),
            n_window_pages: window_pool.map_or(0, PagePool::n_pages),
            n_window_pages_in_use: window_pool.map_or(0, PagePool::n_in_use),
            generated_tokens: tally.generated_tokens,
            finished: tally.finished,
            failed: tally.failed,
            failed_steps: tally.failed_steps,
            failed_draft_rows: tally.failed_draft_rows,
            has_draft_failed: tally.has_draft_failed,
            drafts_from_hidden: tally.drafts_from_hidden,
            masks: tally.masks,
            scheduler: scheduler.counters(),
            pool: pool.counters(),
            window_pool: window_pool.map(PagePool::counters).unwrap_or_default(),
        };
    }

    pub(crate) fn publish_adapters(&self, in_use: AdaptersInUse) {
        *self
            .adapters_in_use
            .lock()
            .expect("nothing panics while it holds this lock") = in_use;
    }

    pub(crate) fn adapters_in_use(&self) -> AdaptersInUse {
        let in_use = self.adapters_in_use.lock();
        in_use.expect("nothing panics while it holds this lock").clone()
    }

    pub(crate) fn stats(&self) -> EngineStats {
        *self
            .stats
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    pub(crate) fn with_step_times<R>(&self, f: impl FnOnce(&mut StepTimes) -> R) -> R {
        f(&mut self
            .step_times
            .lock()
            .expect("nothing panics while it holds this lock"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_is_that_of_the_fuller_group() {
        let stats = |window_pages_in_use| EngineStats {
            n_pages: 100,
            n_pages_in_use: 25,
            n_window_pages: 8,
            n_window_pages_in_use: window_pages_in_use,
            ..EngineStats::default()
        };
        assert_eq!(
            [stats(0), stats(1), stats(8)].map(|stats| stats.kv_usage()),
            [0.25, 0.25, 1.0]
        );
        assert_eq!(EngineStats::default().kv_usage(), 0.0);
    }
}

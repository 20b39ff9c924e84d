//! The asynchronous instructions in time: phases of barriers in shared memory, bulk copies, and the matrix operations of warpgroups.
//!
//! A matrix operation queues for its scheduler's tensor core and the warp continues; `wgmma.wait_group` waits. It reads B, and A if that is in
//! shared memory, through the unit of shared memory, a quarter of B for each warp. A phase ends when the last of its arrivals and copies in the run
//! has completed. Assumptions: the queue has no limit, and a bulk copy takes the way of a load without the warp's unit.

use std::collections::HashMap;

use super::Multiprocessor;
use crate::{
    op::{AsyncOp, GroupLeft, GroupMultiply},
    timing::cost::{N_SCHEDULERS, Unit},
    trace::Executed,
};

/// The value of `waits_at` for a warp that waits for a phase.
const AT_PHASE: usize = usize::MAX;
/// Bytes that shared memory gives or takes in a clock.
const SHARED_BYTES_PER_CLOCK: f64 = 128.0;

/// The matrix operations of a warp.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    /// When the operations since the last commit are done, and those of each group.
    open: f64,
    done: Vec<f64>,
}

/// The phases of a thread block's barriers, by barrier and phase.
pub(super) type Phases = HashMap<(u32, u32), Phase>;

#[derive(Clone, Debug)]
pub(super) struct Phase {
    /// Arrivals and copies that are not issued yet.
    n_left: u32,
    /// When those that are have come.
    done: f64,
    waiting: Vec<usize>,
}

impl Multiprocessor<'_> {
    /// Returns the time at which the instruction's results are ready.
    pub(super) fn issue_async(&mut self, warp: usize, op: &AsyncOp, executed: &Executed, now: f64) -> f64 {
        let latency = self.work.device.latency;
        match op {
            AsyncOp::GroupMultiply(multiply) => self.multiply(warp, multiply, now),
            AsyncOp::GroupCommit => {
                let groups = &mut self.warps[warp].groups;
                let done = std::mem::take(&mut groups.open);
                groups.done.push(done);
                now
            }
            AsyncOp::GroupWait { pending } => {
                let state = &mut self.warps[warp];
                let n_done = state.groups.done.len().saturating_sub(*pending as usize);
                let until = state.groups.done[..n_done].iter().copied().fold(0.0, f64::max);
                state.earliest = state.earliest.max(until);
                now
            }
            AsyncOp::Arrive { arrives, .. } => {
                if *arrives {
                    self.contribute(warp, executed, now + latency.shared);
                }
                now
            }
            AsyncOp::BulkCopy { .. } => {
                let arrives = self.request(warp, executed, now, false);
                let bytes = f64::from(executed.n_sectors) * crate::counters::SECTOR_BYTES as f64;
                self.pass_shared(now, bytes);
                self.contribute(warp, executed, arrives);
                now
            }
            AsyncOp::TryWait { .. } => {
                self.wait_for_phase(warp, executed, now);
                now + latency.shared
            }
            AsyncOp::BarrierInit { .. } | AsyncOp::BarrierEnd { .. } => now + latency.shared,
            AsyncOp::ProxyFence | AsyncOp::BarrierFence => {
                let state = &mut self.warps[warp];
                state.earliest = state.earliest.max(now + latency.shared);
                now
            }
            AsyncOp::Elect { .. } | AsyncOp::SetRegisters | AsyncOp::GroupFence => now + latency.arithmetic,
        }
    }

    fn pass_shared(&mut self, now: f64, bytes: f64) {
        let clocks = bytes / SHARED_BYTES_PER_CLOCK;
        self.memory_free = self.memory_free.max(now) + clocks;
        self.outcome.memory_clocks += clocks;
    }

    fn multiply(&mut self, warp: usize, multiply: &GroupMultiply, now: f64) -> f64 {
        let device = self.work.device;
        let scheduler = self.warps[warp].scheduler;
        let n_columns = multiply.n_columns() as f64;
        // 16 rows and 16 of k of each warp, in f16. Fewer columns than 32 are taken to need as long as 32, which has no source.
        let clocks = 256.0 * n_columns.max(32.0) * N_SCHEDULERS as f64 / device.group_f16_per_clock;
        let from_shared = match multiply.a {
            GroupLeft::Shared(_) => 512.0,
            GroupLeft::Registers(_) => 0.0,
        };
        self.pass_shared(now, n_columns * 32.0 / 4.0 + from_shared);
        let free = &mut self.unit_free[scheduler][Unit::Matrix as usize];
        *free = free.max(now) + clocks;
        self.unit_clocks[Unit::Matrix as usize] += clocks;
        let done = free.max(self.memory_free) + device.latency.matrix;
        let open = &mut self.warps[warp].groups.open;
        *open = open.max(done);
        now
    }

    fn phase(&mut self, warp: usize, executed: &Executed) -> Option<&mut Phase> {
        let trace = &self.work.traces[self.warps[warp].trace];
        let key = trace.marks[(executed.mark as usize).checked_sub(1)?];
        let n_left = trace.contributions.get(&key).copied().unwrap_or(0);
        let slot = self.warps[warp].slot;
        Some(self.slots[slot].phases.entry(key).or_insert(Phase {
            n_left,
            done: 0.0,
            waiting: Vec::new(),
        }))
    }

    fn contribute(&mut self, warp: usize, executed: &Executed, at: f64) {
        let Some(phase) = self.phase(warp, executed) else {
            return;
        };
        phase.n_left = phase.n_left.saturating_sub(1);
        phase.done = phase.done.max(at);
        if phase.n_left > 0 {
            return;
        }
        let after = phase.done;
        for waiting in std::mem::take(&mut phase.waiting) {
            self.warps[waiting].waits_at = None;
            self.warps[waiting].earliest = self.warps[waiting].earliest.max(after);
            self.enqueue(waiting, after);
        }
    }

    fn wait_for_phase(&mut self, warp: usize, executed: &Executed, now: f64) {
        let Some(phase) = self.phase(warp, executed) else {
            return;
        };
        if phase.n_left > 0 {
            phase.waiting.push(warp);
            self.warps[warp].waits_at = Some(AT_PHASE);
        } else {
            let done = phase.done;
            let state = &mut self.warps[warp];
            state.earliest = state.earliest.max(done).max(now);
        }
    }
}

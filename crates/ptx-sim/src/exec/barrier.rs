//! Barriers of a thread block: the warps that wait, their release, and reductions at barriers.
//!
//! Invariant: a barrier orders every access before it against every access after it, for the warps that took part.

use super::{BlockRunner, Stop};
use crate::{
    FindingKind,
    lanes::LANES,
    op::{BarrierFn, BarrierReduce},
};

/// Named barriers of a thread block.
pub(super) const N_BARRIERS: usize = 16;

/// A warp's wait at a barrier.
#[derive(Clone, Copy, Debug)]
pub(super) struct BarrierWait {
    pub(super) id: usize,
    /// Threads that must arrive; `None` means all of the thread block.
    pub(super) threads: Option<u32>,
    pub(super) reduce: Option<(BarrierReduce, u32)>,
    /// Lanes that execute the barrier.
    pub(super) mask: u32,
}

impl BlockRunner<'_> {
    /// Releases warps whose barrier is complete; returns whether there were any.
    pub(super) fn release_ready(&mut self) -> bool {
        let n_alive = self.warps.iter().filter(|warp| warp.alive != 0).count();
        let mut is_any_released = false;
        for id in 0..N_BARRIERS {
            let at_barrier: Vec<usize> = (0..self.warps.len())
                .filter(|&index| self.warps[index].waiting.is_some_and(|wait| wait.id == id))
                .collect();
            let Some(&first) = at_barrier.first() else {
                continue;
            };
            let needed = self.warps[first]
                .waiting
                .and_then(|wait| wait.threads)
                .map_or(n_alive, |threads| threads.div_ceil(LANES as u32) as usize);
            if at_barrier.len() < needed {
                continue;
            }
            is_any_released = true;
            self.shared.join_clocks(&at_barrier);
            self.finish_reduce(&at_barrier);
            for &index in &at_barrier {
                self.warps[index].waiting = None;
            }
        }
        is_any_released
    }

    /// Releases warps whose barrier is complete.
    pub(super) fn release_barriers(&mut self) -> Result<(), Stop> {
        if self.release_ready() {
            return Ok(());
        }
        let n_alive = self.warps.iter().filter(|warp| warp.alive != 0).count();
        let waiting = self.warps.iter().position(|warp| warp.waiting.is_some());
        let index = waiting.unwrap_or(0);
        let pc = self.warps[index]
            .splits
            .first()
            .map_or(0, |split| split.pc.saturating_sub(1));
        let kind = FindingKind::Deadlock {
            waiting_warps: self.warps.iter().filter(|warp| warp.waiting.is_some()).count() as u32,
            alive_warps: n_alive as u32,
        };
        self.find(index as u32, 0, pc, kind);
        Err(Stop)
    }

    fn finish_reduce(&mut self, at_barrier: &[usize]) {
        let (mut n_true, mut n_threads) = (0, 0);
        for &index in at_barrier {
            if let Some(BarrierWait {
                reduce: Some((_, answers)),
                mask,
                ..
            }) = self.warps[index].waiting
            {
                n_true += (answers & mask).count_ones();
                n_threads += mask.count_ones();
            }
        }
        for &index in at_barrier {
            let warp = &mut self.warps[index];
            let Some(BarrierWait {
                reduce: Some((reduce, _)),
                mask,
                ..
            }) = warp.waiting
            else {
                continue;
            };
            let value = match reduce.f {
                BarrierFn::CountTrue => n_true,
                BarrierFn::All => u32::from(n_true == n_threads),
                BarrierFn::Any => u32::from(n_true > 0),
            };
            warp.set_result(reduce.d, value, mask);
        }
    }
}

//! Hands the asynchronous instructions to the modules that execute them.

use super::{BlockRunner, Stop, Warp};
use crate::{
    lanes::LANES,
    op::{AsyncOp, Op},
};

impl BlockRunner<'_> {
    pub(super) fn asynchronous(
        &mut self,
        warp: &mut Warp,
        op: &AsyncOp,
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        match *op {
            AsyncOp::BarrierInit { at, count } => self.make_barrier(warp, at, count, mask, pc)?,
            AsyncOp::BarrierEnd { at } => self.end_barrier(warp, at, mask, pc)?,
            AsyncOp::Arrive {
                at,
                arrives,
                count,
                expected_bytes,
            } => self.arrive(warp, at, arrives, (count, expected_bytes), mask, pc)?,
            AsyncOp::TryWait { at, d, .. } => {
                self.pass_wait(warp, at, mask);
                warp.set_pred(d, mask, mask);
            }
            AsyncOp::BarrierFence => self.shared.fence_barriers(warp.index),
            AsyncOp::BulkCopy {
                to,
                from,
                bytes,
                barrier,
            } => self.bulk_copy(warp, (to, from, barrier), bytes, mask, pc)?,
            AsyncOp::ProxyFence => self.shared.fence_proxy(warp.index),
            AsyncOp::Elect { d, p, members } => {
                let lane = mask.trailing_zeros();
                let members = warp.r32(members)[lane as usize] & mask;
                let leader = members.trailing_zeros();
                warp.set_pred(p, 1u32.checked_shl(leader).unwrap_or(0), mask);
                if let Some(d) = d {
                    warp.set32(d, &[leader; LANES], mask);
                }
            }
            AsyncOp::SetRegisters => {}
            AsyncOp::GroupFence => self.group_fence(warp),
            AsyncOp::GroupCommit => Self::group_commit(warp),
            AsyncOp::GroupWait { pending } => self.group_wait(warp, pending),
            AsyncOp::GroupMultiply(ref multiply) => self.group_multiply(warp, multiply, mask, pc)?,
        }
        Ok(())
    }

    /// Releases waits at barriers if no warp can continue, or else completes the oldest copy.
    pub(super) fn unblock(&mut self) -> Result<(), Stop> {
        if self.release_ready() || self.let_copy_come() {
            return Ok(());
        }
        let code = &self.context.kernel.code;
        for index in 0..self.warps.len() {
            for split in self.warps[index].splits.clone() {
                if let Op::Async(AsyncOp::TryWait { at, .. }) = code[split.pc as usize].op {
                    self.report_endless_wait(at, index, split.pc, split.mask);
                }
            }
        }
        Err(Stop)
    }
}

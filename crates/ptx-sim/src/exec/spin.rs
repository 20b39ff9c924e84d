//! Warps that spin: they load the same value again and again until another thread block (or warp) writes.
//!
//! This is the only reason to interrupt a thread block before its end. A warp that has polled [`PATIENCE`] times without a write to global memory
//! in between is set aside; when no warp of its thread block can continue, other thread blocks run. Invariant: a kernel without strong loads and
//! atomics with results is never interrupted.

use super::{BlockRunner, Warp, memory::WarpAccess};
use crate::{FindingKind, lanes::Lanes32, op::Op};

/// Number of loads of the same value by the same instruction after which a warp is set aside.
const PATIENCE: u32 = 8;
/// Number of strong loads of any values, without a write, after which it is set aside.
const MAX_LOADS: u32 = 4096;

/// A strong load, and its value.
#[derive(Clone, Copy, Debug)]
struct Poll {
    pc: u32,
    mask: u32,
    address: u64,
    digest: u64,
    n: u32,
    /// Number of the warp's kept instructions when it first loaded that value.
    n_kept: usize,
}

/// The strong loads of a warp since it wrote to global memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Polls {
    seen: Vec<Poll>,
    n_loads: u32,
    /// The load that spins.
    stuck: Option<usize>,
    /// Whether a load gave another value, or the warp wrote, since the last query.
    has_changed: bool,
}

impl Polls {
    /// Forgets the polls because the warp has written, or begins.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.n_loads > 0 {
            self.seen.clear();
            self.n_loads = 0;
            self.stuck = None;
        }
        self.has_changed = true;
    }

    /// Returns whether the warp spins; if so, it will try again.
    pub(super) fn take_stuck(&mut self) -> bool {
        let is_stuck = self.stuck.is_some_and(|at| self.seen[at].n >= PATIENCE) || self.n_loads >= MAX_LOADS;
        if is_stuck {
            self.seen.iter_mut().for_each(|poll| poll.n = 0);
            self.n_loads = 1;
        }
        is_stuck
    }
}

impl BlockRunner<'_> {
    /// Notes the value of a strong load, or of an atomic that changed nothing.
    pub(super) fn note_poll(&mut self, warp: &mut Warp, access: &WarpAccess<'_>, words: &[Lanes32]) {
        // Thread blocks of other kernels run in parallel, and none is set aside.
        if !self.context.kernel.is_order_dependent {
            return;
        }
        let (pc, mask) = (access.pc, access.mask);
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        for lane in super::lanes_of(mask) {
            let values = words.iter().map(|word| u64::from(word[lane]));
            for value in std::iter::once(access.addresses[lane]).chain(values) {
                digest = (digest ^ value)
                    .wrapping_mul(0x0000_0100_0000_01b3)
                    .rotate_left(23);
            }
        }
        let n_kept = self.trace.as_ref().map_or(0, |trace| trace.n_kept(warp.index));
        let polls = &mut warp.polls;
        polls.n_loads += 1;
        let new = Poll {
            pc,
            mask,
            address: access.addresses[mask.trailing_zeros() as usize],
            digest,
            n: 0,
            n_kept,
        };
        let Some(at) = polls
            .seen
            .iter()
            .position(|poll| (poll.pc, poll.mask) == (pc, mask))
        else {
            polls.seen.push(new);
            polls.has_changed = true;
            return;
        };
        let poll = &mut polls.seen[at];
        if poll.digest != digest {
            *poll = new;
            polls.has_changed = true;
            return;
        }
        poll.n += 1;
        polls.stuck = Some(at);
        // The timing model counts a wait as one turn of its loop.
        if let Some(trace) = &mut self.trace {
            let code = &self.context.kernel.code;
            trace.forget(warp.index, poll.n_kept, |pc| {
                matches!(code[pc as usize].op, Op::Barrier { .. } | Op::Async(_))
            });
        }
    }

    /// Returns whether a warp has written or seen another value since the last query.
    pub(crate) fn take_progress(&mut self) -> bool {
        let mut is_any = false;
        for warp in &mut self.warps {
            is_any |= std::mem::take(&mut warp.polls.has_changed);
        }
        is_any
    }

    /// Reports the loads at which the thread block's warps spin.
    pub(crate) fn report_wait(&mut self, waiting_blocks: u64, blocks_not_begun: u64) {
        for index in 0..self.warps.len() {
            let warp = &self.warps[index];
            if !warp.awaits_write {
                continue;
            }
            if let Some(poll) = warp.polls.stuck.and_then(|at| warp.polls.seen.get(at).copied()) {
                let kind = FindingKind::EndlessSpin {
                    address: poll.address,
                    waiting_blocks,
                    blocks_not_begun,
                };
                self.find(index as u32, poll.mask.trailing_zeros(), poll.pc, kind);
            }
        }
    }
}

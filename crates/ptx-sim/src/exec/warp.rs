//! A warp: its registers, and its lanes in splits.
//!
//! Invariant: an active lane is in exactly one split.

use super::{FULL, barrier::BarrierWait, groups, local, register_files::Registers, shared, spin::Polls};
use crate::{
    lanes::{LANES, Lanes32, Lanes64},
    op::{AnyReg, VoteResult},
};

/// Lanes of a warp at the same instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    pub(super) pc: u32,
    pub(super) mask: u32,
    /// Waits for other lanes at `pc`.
    pub(super) is_waiting: bool,
}

pub(super) struct Warp {
    pub(super) index: u32,
    pub(super) registers: Registers,
    pub(super) preds: Vec<u32>,
    pub(super) splits: Vec<Split>,
    pub(super) alive: u32,
    pub(super) waiting: Option<BarrierWait>,
    pub(super) executed: u64,
    pub(super) local: local::LocalState,
    pub(super) copies: shared::Copies,
    /// Lanes that have waited for earlier launches.
    pub(super) has_waited: u32,
    /// A split waits for the phase of a barrier in shared memory.
    pub(super) awaits_phase: bool,
    /// A split waits for other thread blocks or warps to write.
    pub(super) awaits_write: bool,
    pub(super) polls: Polls,
    pub(super) groups: groups::Groups,
}

#[inline(always)]
pub(super) fn merge_lanes<T: Copy>(target: &mut [T; LANES], value: &[T; LANES], mask: u32) {
    if mask == FULL {
        *target = *value;
    } else {
        for lane in 0..LANES {
            let is_active = mask >> lane & 1 == 1;
            target[lane] = if is_active { value[lane] } else { target[lane] };
        }
    }
}

impl Warp {
    #[inline(always)]
    pub(super) fn set32(&mut self, d: u16, value: &Lanes32, mask: u32) {
        merge_lanes(&mut self.registers.regs32[usize::from(d)], value, mask);
    }

    #[inline(always)]
    pub(super) fn set64(&mut self, d: u16, value: &Lanes64, mask: u32) {
        merge_lanes(&mut self.registers.regs64[usize::from(d)], value, mask);
    }

    pub(super) fn set_pred(&mut self, d: u16, value: u32, mask: u32) {
        let pred = &mut self.preds[usize::from(d)];
        *pred = (*pred & !mask) | (value & mask);
    }

    pub(super) fn set_result(&mut self, d: VoteResult, value: u32, mask: u32) {
        match d {
            VoteResult::Pred(d) => self.set_pred(d, if value == 0 { 0 } else { FULL }, mask),
            VoteResult::Reg(d) => self.set32(d, &[value; LANES], mask),
        }
    }

    pub(super) fn r32(&self, index: u16) -> &Lanes32 {
        &self.registers.regs32[usize::from(index)]
    }

    pub(super) fn r64(&self, index: u16) -> &Lanes64 {
        &self.registers.regs64[usize::from(index)]
    }

    pub(super) fn pred(&self, index: u16) -> u32 {
        self.preds[usize::from(index)]
    }

    /// Returns a register of either width, zero-extended.
    pub(super) fn any(&self, register: AnyReg) -> Lanes64 {
        match register {
            AnyReg::R32(index) => {
                let mut value = [0; LANES];
                for (value, &bits) in value.iter_mut().zip(self.r32(index)) {
                    *value = u64::from(bits);
                }
                value
            }
            AnyReg::R64(index) => *self.r64(index),
        }
    }

    /// Writes a register of either width; a narrow one keeps the lower half.
    pub(super) fn set_any(&mut self, register: AnyReg, value: &Lanes64, mask: u32) {
        match register {
            AnyReg::R32(d) => {
                let mut narrow = [0; LANES];
                for (narrow, &value) in narrow.iter_mut().zip(value) {
                    *narrow = value as u32;
                }
                self.set32(d, &narrow, mask);
            }
            AnyReg::R64(d) => self.set64(d, value, mask),
        }
    }

    /// Returns an empty warp, which replaces a warp that is taken out to run.
    pub(super) fn vacant() -> Self {
        Self {
            index: 0,
            registers: Registers::default(),
            preds: Vec::new(),
            splits: Vec::new(),
            alive: 0,
            waiting: None,
            executed: 0,
            local: local::LocalState::new(0),
            copies: shared::Copies::default(),
            has_waited: 0,
            awaits_phase: false,
            awaits_write: false,
            polls: Polls::default(),
            groups: groups::Groups::default(),
        }
    }
}

/// Returns a running split to the list if it met another one or another is behind it; returns whether it did.
pub(super) fn regroup(splits: &mut Vec<Split>, split: Split) -> bool {
    if let Some(other) = splits.iter_mut().find(|other| other.pc == split.pc) {
        other.mask |= split.mask;
        other.is_waiting = false;
        return true;
    }
    let is_ahead = splits
        .iter()
        .any(|other| !other.is_waiting && other.pc < split.pc);
    if is_ahead {
        splits.push(split);
    }
    is_ahead
}

/// Moves the lanes of `taken` to instruction `to`; the split keeps the others.
pub(super) fn branch(warp: &mut Warp, split: &mut Split, taken: u32, to: u32) {
    if taken == split.mask {
        split.pc = to;
    } else {
        split.mask &= !taken;
        match warp.splits.iter_mut().find(|other| other.pc == to) {
            Some(other) => {
                other.mask |= taken;
                other.is_waiting = false;
            }
            None => warp.splits.push(Split {
                pc: to,
                mask: taken,
                is_waiting: false,
            }),
        }
    }
}

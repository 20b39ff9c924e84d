//! Atomic operations on global and shared memory, lane after lane.

use super::{BlockRunner, Stop, Warp, lanes_of, memory::WarpAccess, memory::by_space};
use crate::{
    half::{bf16x2, f16x2},
    lanes::LANES,
    op::{Address, AnyReg, AtomicFn, Order},
    order::EventKind,
    types::{Space, Ty},
};

impl BlockRunner<'_> {
    pub(super) fn atomic(
        &mut self,
        warp: &mut Warp,
        at: Address,
        (f, ty): (AtomicFn, Ty),
        d: Option<AnyReg>,
        (b, c): (AnyReg, AnyReg),
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let addresses = warp.addresses(at);
        let (b, c) = (warp.any(b), warp.any(c));
        let mut old = [0; LANES];
        for (space, addresses, mask) in by_space(at.space, &addresses, mask) {
            let access = WarpAccess {
                addresses: &addresses,
                mask,
                element_bytes: ty.bytes(),
                n: 1,
                order: Order::Strong,
                pc,
            };
            self.check_alignment(warp, space, &access)?;
            let mut is_changed = false;
            let update = |lane: usize, value: u64| {
                let new = apply(f, ty, value, b[lane], c[lane]);
                is_changed |= new != value;
                new
            };
            let values = if space == Space::Shared {
                self.update_shared(warp, &access, update)?
            } else {
                let values = self.update_global(warp, &access, update)?;
                if self.context.kernel.is_order_dependent {
                    let kind = if d.is_some() {
                        EventKind::Update
                    } else {
                        EventKind::Add
                    };
                    // Sums of floats are never used as flags.
                    if d.is_some() || !ty.is_float() {
                        let addresses = lanes_of(mask).map(|lane| addresses[lane]);
                        self.log.release(addresses, kind, self.context.next_event());
                    }
                    if is_changed {
                        warp.polls.clear();
                    } else {
                        let low = values.map(|value| value as u32);
                        let high = values.map(|value| (value >> 32) as u32);
                        self.note_poll(warp, &access, &[low, high]);
                    }
                }
                values
            };
            for lane in lanes_of(mask) {
                old[lane] = values[lane];
            }
        }
        if let Some(d) = d {
            warp.set_any(d, &old, mask);
        }
        Ok(())
    }
}

fn apply(f: AtomicFn, ty: Ty, old: u64, b: u64, c: u64) -> u64 {
    let (old32, b32) = (old as u32, b as u32);
    match f {
        AtomicFn::Add => match ty {
            Ty::F32 => (f32::from_bits(old32) + f32::from_bits(b32)).to_bits().into(),
            Ty::F64 => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
            Ty::F16x2 => f16x2(old32, b32, |a, b| a + b).into(),
            Ty::Bf16x2 => bf16x2(old32, b32, |a, b| a + b).into(),
            Ty::U64 => old.wrapping_add(b),
            _ => old32.wrapping_add(b32).into(),
        },
        AtomicFn::Min => extremum(ty, old, b, true),
        AtomicFn::Max => extremum(ty, old, b, false),
        AtomicFn::And => old & b,
        AtomicFn::Or => old | b,
        AtomicFn::Xor => old ^ b,
        AtomicFn::Exchange => b,
        AtomicFn::CompareSwap => {
            if old == b {
                c
            } else {
                old
            }
        }
        AtomicFn::Increment => u64::from(if old32 >= b32 { 0 } else { old32 + 1 }),
        AtomicFn::Decrement => u64::from(if old32 == 0 || old32 > b32 { b32 } else { old32 - 1 }),
    }
}

fn extremum(ty: Ty, a: u64, b: u64, wants_smaller: bool) -> u64 {
    let is_smaller = match ty {
        Ty::S32 => (a as i32) < (b as i32),
        Ty::S64 => (a as i64) < (b as i64),
        _ => a < b,
    };
    if is_smaller == wants_smaller { a } else { b }
}

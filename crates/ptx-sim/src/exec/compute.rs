//! Instructions that compute from registers to registers of the same lanes. Sibling modules execute
//! instructions that touch memory or other lanes.

use super::{BlockRunner, Stop, Warp, convert, matrix, merge_lanes, warp_ops};
use crate::{
    lanes::{LANES, Lanes32, flush, to_mask},
    op::{Combine, Op},
};

impl BlockRunner<'_> {
    /// Executes an instruction that does not change the flow, with the instruction set of the function that this is inlined into.
    #[inline(always)]
    pub(super) fn execute(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) -> Result<(), Stop> {
        match *op {
            Op::Unary32 { f, flush, d, a } => {
                let mut value = f.eval(flushed(warp.r32(a), flush, &mut None));
                flush_result(&mut value, flush);
                warp.set32(d, &value, mask);
            }
            Op::Binary32 { f, flush, d, a, b } => {
                let (mut for_a, mut for_b) = (None, None);
                let a = flushed(warp.r32(a), flush, &mut for_a);
                let mut value = f.eval(a, flushed(warp.r32(b), flush, &mut for_b));
                flush_result(&mut value, flush);
                warp.set32(d, &value, mask);
            }
            Op::Ternary32 { f, flush, d, a, b, c } => {
                let (mut for_a, mut for_b, mut for_c) = (None, None, None);
                let a = flushed(warp.r32(a), flush, &mut for_a);
                let b = flushed(warp.r32(b), flush, &mut for_b);
                let mut value = f.eval(a, b, flushed(warp.r32(c), flush, &mut for_c));
                flush_result(&mut value, flush);
                warp.set32(d, &value, mask);
            }
            Op::Quaternary32 { f, d, a, b, c, e } => {
                let value = f.eval(warp.r32(a), warp.r32(b), warp.r32(c), warp.r32(e));
                warp.set32(d, &value, mask);
            }
            Op::Unary64 { f, d, a } => {
                let value = f.eval(warp.r64(a));
                warp.set64(d, &value, mask);
            }
            Op::Binary64 { f, d, a, b } => {
                let value = f.eval(warp.r64(a), warp.r64(b));
                warp.set64(d, &value, mask);
            }
            Op::Ternary64 { f, d, a, b, c } => {
                let value = f.eval(warp.r64(a), warp.r64(b), warp.r64(c));
                warp.set64(d, &value, mask);
            }
            Op::Shift64 { f, d, a, b } => {
                let value = f.eval(warp.r64(a), warp.r32(b));
                warp.set64(d, &value, mask);
            }
            Op::Extract64 { f, d, a, b, c } => {
                let value = f.eval(warp.r64(a), warp.r32(b), warp.r32(c));
                warp.set64(d, &value, mask);
            }
            Op::Insert64 { f, d, a, b, c, e } => {
                let value = f.eval(warp.r64(a), warp.r64(b), warp.r32(c), warp.r32(e));
                warp.set64(d, &value, mask);
            }
            Op::Wide { f, d, a, b } => {
                let value = f.eval(warp.r32(a), warp.r32(b));
                warp.set64(d, &value, mask);
            }
            Op::MadWide { f, d, a, b, c } => {
                let mut value = f.eval(warp.r32(a), warp.r32(b));
                for (sum, c) in value.iter_mut().zip(warp.r64(c)) {
                    *sum = sum.wrapping_add(*c);
                }
                warp.set64(d, &value, mask);
            }
            Op::Widen { f, d, a } => {
                let value = f.eval(warp.r32(a));
                warp.set64(d, &value, mask);
            }
            Op::Narrow { f, d, a } => {
                let value = f.eval(warp.r64(a));
                warp.set32(d, &value, mask);
            }
            Op::Lookup { table, d, a, b, c } => {
                let value = lookup(table, warp.r32(a), warp.r32(b), warp.r32(c));
                warp.set32(d, &value, mask);
            }
            Op::Convert {
                from,
                to,
                rounding,
                saturate,
                d,
                a,
            } => {
                let value = convert::convert(from, to, rounding, saturate, &warp.any(a));
                warp.set_any(d, &value, mask);
            }
            Op::Move32 { d, a } => {
                let value = *warp.r32(a);
                warp.set32(d, &value, mask);
            }
            Op::Move64 { d, a } => {
                let value = *warp.r64(a);
                warp.set64(d, &value, mask);
            }
            Op::MovePred { d, a } => warp.set_pred(d, warp.pred(a), mask),
            Op::NotPred { d, a } => warp.set_pred(d, !warp.pred(a), mask),
            Op::CombinePred { f, d, a, b } => warp.set_pred(d, combine(f, warp.pred(a), warp.pred(b)), mask),
            Op::Select32 { d, a, b, p } => {
                let mut value = *warp.r32(b);
                merge_lanes(&mut value, warp.r32(a), warp.pred(p));
                warp.set32(d, &value, mask);
            }
            Op::Select64 { d, a, b, p } => {
                let mut value = *warp.r64(b);
                merge_lanes(&mut value, warp.r64(a), warp.pred(p));
                warp.set64(d, &value, mask);
            }
            Op::Compare32 {
                f,
                flush,
                p,
                q,
                a,
                b,
                with,
            } => {
                let (mut for_a, mut for_b) = (None, None);
                let a = flushed(warp.r32(a), flush, &mut for_a);
                let answers = to_mask(&f.eval(a, flushed(warp.r32(b), flush, &mut for_b)));
                set_compared(warp, answers, p, q, with, mask);
            }
            Op::Compare64 { f, p, q, a, b, with } => {
                let answers = to_mask(&f.eval(warp.r64(a), warp.r64(b)));
                set_compared(warp, answers, p, q, with, mask);
            }
            Op::ToGeneric { window, d, a } => {
                let value = warp.any(a).map(|offset| offset.wrapping_add(window));
                warp.set64(d, &value, mask);
            }
            Op::FromGeneric { window, d, a } => {
                let value = warp.r64(a).map(|address| address.wrapping_sub(window));
                warp.set_any(d, &value, mask);
            }
            Op::Load {
                at,
                ty,
                n,
                order,
                ref d,
                ref narrow,
            } => {
                let d = (&d[..usize::from(n)], &narrow[..usize::from(n)]);
                self.load(warp, at, ty, order, d, mask, pc)?;
            }
            Op::Store {
                at,
                ty,
                n,
                order,
                ref a,
            } => self.store(warp, at, ty, order, &a[..usize::from(n)], mask, pc)?,
            Op::Atomic { at, f, ty, d, b, c } => self.atomic(warp, at, (f, ty), d, (b, c), mask, pc)?,
            Op::CopyAsync {
                to,
                from,
                bytes,
                source_bytes,
            } => self.copy_async(warp, to, from, bytes, source_bytes, mask, pc)?,
            Op::CopyCommit => warp.copies.commit(mask),
            Op::CopyWait { pending } => self.copy_wait(warp, pending, mask),
            Op::Fence { is_wide } => {
                if is_wide {
                    self.log.fence();
                }
            }
            Op::AwaitEarlier => self.await_earlier(warp, mask),
            Op::Prefetch | Op::LetNextBegin | Op::WarpBarrier { .. } => {}
            Op::Shuffle {
                f,
                d,
                p,
                a,
                b,
                c,
                members,
            } => self.shuffle(warp, f, (d, p), [a, b, c, members], mask, pc),
            Op::Vote {
                f,
                d,
                a,
                negated,
                members,
            } => warp_ops::vote(warp, f, d, (a, negated), members, mask),
            Op::Match { d, a, members } => warp_ops::match_any(warp, d, a, members, mask),
            Op::Reduce {
                f,
                is_signed,
                d,
                a,
                members,
            } => warp_ops::reduce(warp, (f, is_signed), d, a, members, mask),
            Op::ActiveMask { d } => warp.set32(d, &[mask; LANES], mask),
            Op::LoadMatrix { at, n, transposed, d } => self.load_matrix(warp, at, n, transposed, d, pc)?,
            Op::Matrix { kind, d, a, b, c } => matrix::multiply(warp, kind, d, a, b, c),
            Op::Async(ref op) => self.asynchronous(warp, op, mask, pc)?,
            Op::Branch { .. } | Op::BranchTable { .. } | Op::Exit | Op::Trap | Op::Barrier { .. } => {
                unreachable!("the caller handles instructions that change the flow")
            }
        }
        Ok(())
    }
}

/// Returns a register, or a copy of it in `room` whose subnormal numbers are zeros if the instruction flushes them.
#[inline(always)]
fn flushed<'a>(value: &'a Lanes32, flushes: bool, room: &'a mut Option<Lanes32>) -> &'a Lanes32 {
    if !flushes {
        return value;
    }
    let room = room.insert(*value);
    flush_result(room, true);
    room
}

/// Makes zeros of subnormal numbers if the instruction flushes them.
#[inline(always)]
fn flush_result(value: &mut Lanes32, flushes: bool) {
    if flushes {
        for lane in value {
            *lane = flush(*lane);
        }
    }
}

fn combine(f: Combine, a: u32, b: u32) -> u32 {
    match f {
        Combine::And => a & b,
        Combine::Or => a | b,
        Combine::Xor => a ^ b,
    }
}

fn set_compared(
    warp: &mut Warp,
    answers: u32,
    p: u16,
    q: Option<u16>,
    with: Option<(Combine, u16, bool)>,
    mask: u32,
) {
    let with = with.map(|(f, c, is_negated)| {
        let c = warp.pred(c);
        (f, if is_negated { !c } else { c })
    });
    let result = |answers: u32| with.map_or(answers, |(f, c)| combine(f, answers, c));
    warp.set_pred(p, result(answers), mask);
    if let Some(q) = q {
        warp.set_pred(q, result(!answers), mask);
    }
}

fn lookup(table: u8, a: &Lanes32, b: &Lanes32, c: &Lanes32) -> Lanes32 {
    let mut out = [0; LANES];
    for row in 0..8u32 {
        if table >> row & 1 == 0 {
            continue;
        }
        let (flip_a, flip_b, flip_c) = (
            if row & 4 == 0 { u32::MAX } else { 0 },
            if row & 2 == 0 { u32::MAX } else { 0 },
            if row & 1 == 0 { u32::MAX } else { 0 },
        );
        for lane in 0..LANES {
            out[lane] |= (a[lane] ^ flip_a) & (b[lane] ^ flip_b) & (c[lane] ^ flip_c);
        }
    }
    out
}

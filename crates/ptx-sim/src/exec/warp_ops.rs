//! Exchanges within a warp: shuffle, vote, match, reduce.

use super::{BlockRunner, FULL, Warp, lanes_of};
use crate::{
    FindingKind,
    lanes::{LANES, Lanes32, to_mask},
    op::{AnyReg, AtomicFn, Shuffle, Vote, VoteResult},
};

impl BlockRunner<'_> {
    /// `shfl.sync`: lanes outside the segment keep their own value and return false.
    #[inline(always)]
    pub(super) fn shuffle(
        &mut self,
        warp: &mut Warp,
        f: Shuffle,
        (d, p): (u16, Option<u16>),
        [a, b, c, members]: [u16; 4],
        mask: u32,
        pc: u32,
    ) {
        let (b, c) = (warp.r32(b), warp.r32(c));
        let (sources, is_inside) = match f {
            Shuffle::Up => sources(b, c, |own, delta, _, highest| {
                let source = own.wrapping_sub(delta);
                (source, source as i32 >= highest as i32)
            }),
            Shuffle::Down => sources(b, c, |own, delta, _, highest| {
                (own + delta, own + delta <= highest)
            }),
            Shuffle::Butterfly => sources(b, c, |own, delta, _, highest| {
                (own ^ delta, own ^ delta <= highest)
            }),
            Shuffle::Index => sources(b, c, |_, delta, segment, highest| {
                let source = segment.lowest | (delta & !segment.mask);
                (source, source <= highest)
            }),
        };
        let members = warp.r32(members);
        // Whole warps exchange mostly, and then every lane that is read is active.
        if members.iter().fold(mask, |all, members| all & members) != FULL {
            for lane in lanes_of(mask) {
                let source = sources[lane];
                if (members[lane] & mask) >> source & 1 == 0 {
                    let kind = FindingKind::InactiveLaneRead { source_lane: source };
                    self.find(warp.index, lane as u32, pc, kind);
                }
            }
        }
        let a = warp.r32(a);
        let mut value = [0; LANES];
        for lane in 0..LANES {
            value[lane] = a[sources[lane] as usize % LANES];
        }
        warp.set32(d, &value, mask);
        if let Some(p) = p {
            warp.set_pred(p, to_mask(&is_inside), mask);
        }
    }
}

/// The part of a warp that a lane exchanges with.
struct Segment {
    mask: u32,
    lowest: u32,
}

/// The lane that each lane reads, its own where `source` leaves the segment, and whether it stays inside. `source` takes the lane, `b`, the lane's
/// segment and its highest lane.
#[inline(always)]
fn sources(
    b: &Lanes32,
    c: &Lanes32,
    source: impl Fn(u32, u32, Segment, u32) -> (u32, bool),
) -> (Lanes32, [bool; LANES]) {
    let mut sources = [0; LANES];
    let mut is_inside = [false; LANES];
    for lane in 0..LANES {
        let own = lane as u32;
        let mask = c[lane] >> 8 & 31;
        let clamp = c[lane] & 31;
        let lowest = own & mask;
        let highest = lowest | (clamp & !mask);
        let (source, is_in) = source(own, b[lane] & 31, Segment { mask, lowest }, highest);
        sources[lane] = if is_in { source } else { own };
        is_inside[lane] = is_in;
    }
    (sources, is_inside)
}

pub(super) fn vote(
    warp: &mut Warp,
    f: Vote,
    d: VoteResult,
    (a, negated): (u16, bool),
    members: u16,
    mask: u32,
) {
    let members = warp.r32(members)[mask.trailing_zeros() as usize] & mask;
    let answers = if negated { !warp.pred(a) } else { warp.pred(a) } & members;
    let value = match f {
        Vote::All => u32::from(answers == members),
        Vote::Any => u32::from(answers != 0),
        Vote::Uniform => u32::from(answers == members || answers == 0),
        Vote::Ballot => answers,
    };
    warp.set_result(d, value, mask);
}

pub(super) fn match_any(warp: &mut Warp, d: u16, a: AnyReg, members: u16, mask: u32) {
    let a = warp.any(a);
    let members = warp.r32(members)[mask.trailing_zeros() as usize] & mask;
    let mut value = [0; LANES];
    for lane in lanes_of(mask) {
        for other in lanes_of(members) {
            value[lane] |= u32::from(a[lane] == a[other]) << other;
        }
    }
    warp.set32(d, &value, mask);
}

pub(super) fn reduce(
    warp: &mut Warp,
    (f, is_signed): (AtomicFn, bool),
    d: u16,
    a: u16,
    members: u16,
    mask: u32,
) {
    let a = *warp.r32(a);
    let members = warp.r32(members)[mask.trailing_zeros() as usize] & mask;
    let value = lanes_of(members)
        .map(|lane| a[lane])
        .reduce(|sum, value| match (f, is_signed) {
            (AtomicFn::Min, true) => (sum as i32).min(value as i32) as u32,
            (AtomicFn::Max, true) => (sum as i32).max(value as i32) as u32,
            (AtomicFn::Min, false) => sum.min(value),
            (AtomicFn::Max, false) => sum.max(value),
            (AtomicFn::And, _) => sum & value,
            (AtomicFn::Or, _) => sum | value,
            (AtomicFn::Xor, _) => sum ^ value,
            _ => sum.wrapping_add(value),
        })
        .unwrap_or(0);
    warp.set32(d, &[value; LANES], mask);
}

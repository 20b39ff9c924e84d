//! Exchanges within a warp: shuffle, vote, match, reduce.

use super::{BlockRunner, Warp, lanes_of};
use crate::{
    FindingKind,
    lanes::LANES,
    op::{AnyReg, AtomicFn, Shuffle, Vote, VoteResult},
};

impl BlockRunner<'_> {
    /// `shfl.sync`: lanes outside the segment keep their own value and return false.
    pub(super) fn shuffle(
        &mut self,
        warp: &mut Warp,
        f: Shuffle,
        (d, p): (u16, Option<u16>),
        [a, b, c, members]: [u16; 4],
        mask: u32,
        pc: u32,
    ) {
        let (a, b, c) = (*warp.r32(a), *warp.r32(b), *warp.r32(c));
        let members = *warp.r32(members);
        let mut value = a;
        let mut in_range = 0;
        for lane in lanes_of(mask) {
            let segment = c[lane] >> 8 & 31;
            let clamp = c[lane] & 31;
            let delta = b[lane] & 31;
            let own = lane as u32;
            let highest = (own & segment) | (clamp & !segment);
            let lowest = own & segment;
            let (source, is_inside) = match f {
                Shuffle::Up => (
                    own.wrapping_sub(delta),
                    own as i32 - delta as i32 >= highest as i32,
                ),
                Shuffle::Down => (own + delta, own + delta <= highest),
                Shuffle::Butterfly => (own ^ delta, own ^ delta <= highest),
                Shuffle::Index => {
                    let source = lowest | (delta & !segment);
                    (source, source <= highest)
                }
            };
            let source = if is_inside { source } else { own };
            in_range |= u32::from(is_inside) << lane;
            if (members[lane] & mask) >> source & 1 == 0 {
                let kind = FindingKind::InactiveLaneRead { source_lane: source };
                self.find(warp.index, own, pc, kind);
            }
            value[lane] = a[source as usize];
        }
        warp.set32(d, &value, mask);
        if let Some(p) = p {
            warp.set_pred(p, in_range, mask);
        }
    }
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

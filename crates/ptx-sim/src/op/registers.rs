//! Lists the registers that an instruction reads and writes, for the timing model and the search for registers that are read
//! first.
//!
//! Invariant: every register of an operand is listed, and the guard is among those read.

use super::{AnyReg, Instruction, Op, VoteResult};

/// A register of any file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    R32(u16),
    R64(u16),
    Pred(u16),
}

impl From<AnyReg> for Register {
    fn from(register: AnyReg) -> Self {
        match register {
            AnyReg::R32(index) => Self::R32(index),
            AnyReg::R64(index) => Self::R64(index),
        }
    }
}

impl From<VoteResult> for Register {
    fn from(result: VoteResult) -> Self {
        match result {
            VoteResult::Pred(index) => Self::Pred(index),
            VoteResult::Reg(index) => Self::R32(index),
        }
    }
}

impl Instruction {
    /// Calls `f` for each register that is read.
    pub(crate) fn reads(&self, mut f: impl FnMut(Register)) {
        if let Some((guard, _)) = self.guard {
            f(Register::Pred(guard));
        }
        self.op.reads(&mut f);
    }

    /// Calls `f` for each register that is written.
    pub(crate) fn writes(&self, mut f: impl FnMut(Register)) {
        self.op.writes(&mut f);
    }
}

impl Op {
    fn reads(&self, f: &mut impl FnMut(Register)) {
        use Register::{Pred, R32, R64};
        let mut all = |registers: &[Register]| registers.iter().copied().for_each(&mut *f);
        match self {
            Self::Unary32 { a, .. } | Self::Widen { a, .. } | Self::Move32 { a, .. } => all(&[R32(*a)]),
            Self::Binary32 { a, b, .. } | Self::Wide { a, b, .. } => all(&[R32(*a), R32(*b)]),
            Self::Ternary32 { a, b, c, .. } | Self::Lookup { a, b, c, .. } => {
                all(&[R32(*a), R32(*b), R32(*c)]);
            }
            Self::Quaternary32 { a, b, c, e, .. } => all(&[R32(*a), R32(*b), R32(*c), R32(*e)]),
            Self::Unary64 { a, .. }
            | Self::Narrow { a, .. }
            | Self::Move64 { a, .. }
            | Self::FromGeneric { a, .. } => all(&[R64(*a)]),
            Self::Binary64 { a, b, .. } => all(&[R64(*a), R64(*b)]),
            Self::Ternary64 { a, b, c, .. } => all(&[R64(*a), R64(*b), R64(*c)]),
            Self::Shift64 { a, b, .. } => all(&[R64(*a), R32(*b)]),
            Self::Extract64 { a, b, c, .. } => all(&[R64(*a), R32(*b), R32(*c)]),
            Self::Insert64 { a, b, c, e, .. } => all(&[R64(*a), R64(*b), R32(*c), R32(*e)]),
            Self::MadWide { a, b, c, .. } => all(&[R32(*a), R32(*b), R64(*c)]),
            Self::Convert { a, .. } | Self::ToGeneric { a, .. } => all(&[(*a).into()]),
            Self::MovePred { a, .. } | Self::NotPred { a, .. } => all(&[Pred(*a)]),
            Self::CombinePred { a, b, .. } => all(&[Pred(*a), Pred(*b)]),
            Self::Select32 { a, b, p, .. } => all(&[R32(*a), R32(*b), Pred(*p)]),
            Self::Select64 { a, b, p, .. } => all(&[R64(*a), R64(*b), Pred(*p)]),
            Self::Compare32 { a, b, with, .. } => {
                all(&[R32(*a), R32(*b)]);
                if let Some((_, p, _)) = with {
                    all(&[Pred(*p)]);
                }
            }
            Self::Compare64 { a, b, with, .. } => {
                all(&[R64(*a), R64(*b)]);
                if let Some((_, p, _)) = with {
                    all(&[Pred(*p)]);
                }
            }
            Self::Load { at, .. } | Self::LoadMatrix { at, .. } => all(&[at.base.into()]),
            Self::Store { at, n, a, .. } => {
                all(&[at.base.into()]);
                a[..usize::from(*n)].iter().for_each(|&a| all(&[a.into()]));
            }
            Self::Atomic { at, b, c, .. } => all(&[at.base.into(), (*b).into(), (*c).into()]),
            Self::CopyAsync {
                to,
                from,
                source_bytes,
                ..
            } => {
                all(&[to.base.into(), from.base.into()]);
                if let Some(count) = source_bytes {
                    all(&[R32(*count)]);
                }
            }
            Self::BranchTable { index, .. } => all(&[R32(*index)]),
            Self::Barrier { id, threads, reduce } => {
                all(&[R32(*id)]);
                if let Some(threads) = threads {
                    all(&[R32(*threads)]);
                }
                if let Some(reduce) = reduce {
                    all(&[Pred(reduce.a)]);
                }
            }
            Self::WarpBarrier { members } => all(&[R32(*members)]),
            Self::Shuffle { a, b, c, members, .. } => all(&[R32(*a), R32(*b), R32(*c), R32(*members)]),
            Self::Vote { a, members, .. } => all(&[Pred(*a), R32(*members)]),
            Self::Match { a, members, .. } => all(&[(*a).into(), R32(*members)]),
            Self::Reduce { a, members, .. } => all(&[R32(*a), R32(*members)]),
            Self::Matrix { kind, a, b, c, .. } => {
                let (n_a, n_b, n_c) = kind.registers();
                for register in a[..n_a].iter().chain(&b[..n_b]).chain(&c[..n_c]) {
                    all(&[R32(*register)]);
                }
            }
            Self::Async(op) => op.reads(f),
            Self::CopyCommit
            | Self::CopyWait { .. }
            | Self::Prefetch
            | Self::Fence { .. }
            | Self::LetNextBegin
            | Self::AwaitEarlier
            | Self::Branch { .. }
            | Self::Exit
            | Self::Trap
            | Self::ActiveMask { .. } => {}
        }
    }

    fn writes(&self, f: &mut impl FnMut(Register)) {
        use Register::{Pred, R32, R64};
        match self {
            Self::Unary32 { d, .. }
            | Self::Binary32 { d, .. }
            | Self::Ternary32 { d, .. }
            | Self::Quaternary32 { d, .. }
            | Self::Lookup { d, .. }
            | Self::Narrow { d, .. }
            | Self::Move32 { d, .. }
            | Self::Select32 { d, .. }
            | Self::Match { d, .. }
            | Self::Reduce { d, .. }
            | Self::ActiveMask { d } => f(R32(*d)),
            Self::Unary64 { d, .. }
            | Self::Binary64 { d, .. }
            | Self::Ternary64 { d, .. }
            | Self::Shift64 { d, .. }
            | Self::Extract64 { d, .. }
            | Self::Insert64 { d, .. }
            | Self::Wide { d, .. }
            | Self::MadWide { d, .. }
            | Self::Widen { d, .. }
            | Self::Move64 { d, .. }
            | Self::Select64 { d, .. }
            | Self::ToGeneric { d, .. } => f(R64(*d)),
            Self::Convert { d, .. } | Self::FromGeneric { d, .. } => f((*d).into()),
            Self::MovePred { d, .. } | Self::NotPred { d, .. } | Self::CombinePred { d, .. } => f(Pred(*d)),
            Self::Compare32 { p, q, .. } | Self::Compare64 { p, q, .. } => {
                f(Pred(*p));
                if let Some(q) = q {
                    f(Pred(*q));
                }
            }
            Self::Load { n, d, .. } => d[..usize::from(*n)].iter().for_each(|&d| f(d.into())),
            Self::Atomic { d, .. } => {
                if let Some(d) = d {
                    f((*d).into());
                }
            }
            Self::Barrier { reduce, .. } => {
                if let Some(reduce) = reduce {
                    f(reduce.d.into());
                }
            }
            Self::Shuffle { d, p, .. } => {
                f(R32(*d));
                if let Some(p) = p {
                    f(Pred(*p));
                }
            }
            Self::Vote { d, .. } => f((*d).into()),
            Self::LoadMatrix { n, d, .. } => d[..usize::from(*n)].iter().for_each(|&d| f(R32(d))),
            Self::Matrix { kind, d, .. } => {
                let (_, _, n_d) = kind.registers();
                d[..n_d].iter().for_each(|&d| f(R32(d)));
            }
            Self::Async(op) => op.writes(f),
            Self::Store { .. }
            | Self::CopyAsync { .. }
            | Self::CopyCommit
            | Self::CopyWait { .. }
            | Self::Prefetch
            | Self::Fence { .. }
            | Self::LetNextBegin
            | Self::AwaitEarlier
            | Self::Branch { .. }
            | Self::BranchTable { .. }
            | Self::Exit
            | Self::Trap
            | Self::WarpBarrier { .. } => {}
        }
    }
}

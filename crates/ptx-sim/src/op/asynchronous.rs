//! [`AsyncOp`]: barriers in shared memory that count, bulk copies that report to them, and the matrix operations of warpgroups.
//!
//! These run on while the threads continue. Invariant: their fields name everything that they read, write and wait for, as in
//! [`Op`](super::Op).

use super::{Address, Pred, Reg, Register};

/// An asynchronous instruction of devices from compute capability 9.0 on (the barriers from 8.0 on).
#[derive(Clone, Debug)]
pub(crate) enum AsyncOp {
    /// `mbarrier.init`: a phase needs `count` arrivals.
    BarrierInit { at: Address, count: Reg },
    /// `mbarrier.inval`.
    BarrierEnd { at: Address },
    /// `mbarrier.arrive` of `count` (1 if there is none), and its `expect_tx` form; `mbarrier.expect_tx` has no arrivals.
    Arrive {
        at: Address,
        arrives: bool,
        count: Option<Reg>,
        expected_bytes: Option<Reg>,
    },
    /// `mbarrier.try_wait.parity`. It waits without a limit here, so it never returns false.
    TryWait { at: Address, parity: Reg, d: Pred },
    /// `fence.mbarrier_init`: makes the thread's initialized barriers visible to asynchronous operations.
    BarrierFence,
    /// `cp.async.bulk` from global to shared memory, which reports its bytes to a barrier.
    BulkCopy {
        to: Address,
        from: Address,
        bytes: Reg,
        barrier: Address,
    },
    /// `fence.proxy.async`: makes the thread's writes visible to asynchronous operations.
    ProxyFence,
    /// `elect.sync`: the lowest lane of the members.
    Elect { d: Option<Reg>, p: Pred, members: Reg },
    /// `setmaxnreg`: registers move between warps, which changes no value.
    SetRegisters,
    /// `wgmma.fence`.
    GroupFence,
    /// `wgmma.commit_group`.
    GroupCommit,
    /// `wgmma.wait_group`: at most `pending` groups are left unfinished.
    GroupWait { pending: u32 },
    /// `wgmma.mma_async`.
    GroupMultiply(Box<GroupMultiply>),
}

/// `D = A B + D` (or `A B` if the predicate is false): 64 rows of a warpgroup, 16 of each warp, by so many columns.
#[derive(Clone, Debug)]
pub(crate) struct GroupMultiply {
    /// Whether the inputs are bf16; f16 otherwise.
    pub(crate) is_bf16: bool,
    /// Four registers for each eight columns.
    pub(crate) d: Box<[Reg]>,
    pub(crate) a: GroupLeft,
    /// The 64-bit register with B's descriptor.
    pub(crate) b: u16,
    pub(crate) adds: Pred,
    /// Whether the elements of A and of B are negated.
    pub(crate) negates: [bool; 2],
    /// Whether the elements of one k, instead of those of a row, are contiguous in A and in B; for A only in shared memory.
    pub(crate) transposes: [bool; 2],
}

/// The place of A.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GroupLeft {
    Registers([Reg; 4]),
    /// The 64-bit register with its descriptor.
    Shared(u16),
}

impl GroupMultiply {
    /// Returns the number of columns of B and D.
    pub(crate) fn n_columns(&self) -> usize {
        self.d.len() * 2
    }
}

impl AsyncOp {
    pub(super) fn reads(&self, f: &mut impl FnMut(Register)) {
        match self {
            Self::BarrierInit { at, count } => {
                f(at.base.into());
                f(Register::R32(*count));
            }
            Self::BarrierEnd { at } => f(at.base.into()),
            Self::Arrive {
                at,
                count,
                expected_bytes,
                ..
            } => {
                f(at.base.into());
                for register in [count, expected_bytes].into_iter().flatten() {
                    f(Register::R32(*register));
                }
            }
            Self::TryWait { at, parity, .. } => {
                f(at.base.into());
                f(Register::R32(*parity));
            }
            Self::BulkCopy {
                to,
                from,
                bytes,
                barrier,
            } => {
                for address in [to, from, barrier] {
                    f(address.base.into());
                }
                f(Register::R32(*bytes));
            }
            Self::Elect { members, .. } => f(Register::R32(*members)),
            Self::GroupMultiply(multiply) => {
                multiply.d.iter().for_each(|&d| f(Register::R32(d)));
                match multiply.a {
                    GroupLeft::Registers(a) => a.iter().for_each(|&a| f(Register::R32(a))),
                    GroupLeft::Shared(a) => f(Register::R64(a)),
                }
                f(Register::R64(multiply.b));
                f(Register::Pred(multiply.adds));
            }
            Self::BarrierFence
            | Self::ProxyFence
            | Self::SetRegisters
            | Self::GroupFence
            | Self::GroupCommit
            | Self::GroupWait { .. } => {}
        }
    }

    pub(super) fn writes(&self, f: &mut impl FnMut(Register)) {
        match self {
            Self::TryWait { d, .. } => f(Register::Pred(*d)),
            Self::Elect { d, p, .. } => {
                if let Some(d) = d {
                    f(Register::R32(*d));
                }
                f(Register::Pred(*p));
            }
            Self::GroupMultiply(multiply) => multiply.d.iter().for_each(|&d| f(Register::R32(d))),
            _ => {}
        }
    }
}

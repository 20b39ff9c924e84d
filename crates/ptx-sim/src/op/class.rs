//! [`Class`]: the kind of work of an instruction, for the counters.
//!
//! Invariant: every instruction has exactly one class.

use super::{AsyncOp, Op};
use crate::{
    lanes::{Binary32, Binary64, Ternary32, Ternary64, Unary32, Unary64},
    types::{Space, Ty},
};

/// A class of instructions, as [`Counters`](crate::Counters) lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Integer, bit and predicate arithmetic of 32 bits and less.
    Integer,
    /// Integer arithmetic of 64 bits, including addresses.
    Integer64,
    /// `dp4a`.
    DotProduct,
    /// f32 arithmetic.
    Float32,
    /// f64 arithmetic.
    Float64,
    /// f16 and bf16 arithmetic.
    Float16,
    /// Roots, exponentials, logarithms, trigonometric functions and divisions.
    Special,
    /// Conversions between types.
    Convert,
    /// Moves and selections.
    Move,
    /// Loads from global memory.
    GlobalLoad,
    /// Stores to global memory.
    GlobalStore,
    /// Loads from shared memory, including matrix loads.
    SharedLoad,
    /// Stores to shared memory.
    SharedStore,
    /// Accesses to local memory: spilled registers and indexed arrays.
    Local,
    /// Accesses whose space is decided by the address.
    Generic,
    /// Atomic operations.
    Atomic,
    /// Asynchronous copies, their groups and waits.
    CopyAsync,
    /// Barriers and fences.
    Barrier,
    /// Shuffles, votes and reductions within a warp.
    WarpExchange,
    /// Matrix operations.
    Matrix,
    /// Branches and exits.
    Branch,
}

impl Class {
    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Integer64 => "integer64",
            Self::DotProduct => "dp4a",
            Self::Float32 => "f32",
            Self::Float64 => "f64",
            Self::Float16 => "f16",
            Self::Special => "special",
            Self::Convert => "convert",
            Self::Move => "move",
            Self::GlobalLoad => "global_load",
            Self::GlobalStore => "global_store",
            Self::SharedLoad => "shared_load",
            Self::SharedStore => "shared_store",
            Self::Local => "local",
            Self::Generic => "generic",
            Self::Atomic => "atomic",
            Self::CopyAsync => "copy_async",
            Self::Barrier => "barrier",
            Self::WarpExchange => "warp_exchange",
            Self::Matrix => "matrix",
            Self::Branch => "branch",
        }
    }
}

impl Op {
    /// Returns the class in which the counters count this instruction.
    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Unary32 { f, .. } => unary_class(*f),
            Self::Binary32 { f, .. } => binary_class(*f),
            Self::Ternary32 { f, .. } => ternary_class(*f),
            Self::Unary64 { f, .. } => match f {
                Unary64::DSqrt | Unary64::DRcp | Unary64::DRsqrt => Class::Special,
                Unary64::DNeg | Unary64::DAbs => Class::Float64,
                _ => Class::Integer64,
            },
            Self::Binary64 { f, .. } => match f {
                Binary64::DDiv => Class::Special,
                Binary64::DAdd | Binary64::DSub | Binary64::DMul | Binary64::DMin | Binary64::DMax => {
                    Class::Float64
                }
                _ => Class::Integer64,
            },
            Self::Ternary64 {
                f: Ternary64::DFma, ..
            } => Class::Float64,
            Self::Ternary64 { .. }
            | Self::Shift64 { .. }
            | Self::Extract64 { .. }
            | Self::Insert64 { .. }
            | Self::Wide { .. }
            | Self::MadWide { .. }
            | Self::Compare64 { .. }
            | Self::ToGeneric { .. }
            | Self::FromGeneric { .. } => Class::Integer64,
            Self::Widen { .. } | Self::Narrow { .. } | Self::Convert { .. } => Class::Convert,
            Self::Quaternary32 { .. }
            | Self::Lookup { .. }
            | Self::NotPred { .. }
            | Self::CombinePred { .. }
            | Self::Compare32 { .. } => Class::Integer,
            Self::Move32 { .. }
            | Self::Move64 { .. }
            | Self::MovePred { .. }
            | Self::Select32 { .. }
            | Self::Select64 { .. }
            | Self::ActiveMask { .. } => Class::Move,
            Self::Load { at, .. } => match at.space {
                Space::Global => Class::GlobalLoad,
                Space::Shared => Class::SharedLoad,
                Space::Local => Class::Local,
                Space::Generic => Class::Generic,
            },
            Self::Store { at, .. } => match at.space {
                Space::Global => Class::GlobalStore,
                Space::Shared => Class::SharedStore,
                Space::Local => Class::Local,
                Space::Generic => Class::Generic,
            },
            Self::Atomic { .. } => Class::Atomic,
            Self::CopyAsync { .. }
            | Self::CopyCommit
            | Self::CopyWait { .. }
            | Self::Prefetch
            | Self::Async(AsyncOp::BulkCopy { .. }) => Class::CopyAsync,
            Self::Matrix { .. } | Self::Async(AsyncOp::GroupMultiply(_)) => Class::Matrix,
            Self::Branch { .. } | Self::BranchTable { .. } | Self::Exit | Self::Trap => Class::Branch,
            Self::Shuffle { .. }
            | Self::Vote { .. }
            | Self::Match { .. }
            | Self::Reduce { .. }
            | Self::Async(AsyncOp::Elect { .. }) => Class::WarpExchange,
            Self::LoadMatrix { .. } => Class::SharedLoad,
            Self::Fence { .. }
            | Self::LetNextBegin
            | Self::AwaitEarlier
            | Self::Barrier { .. }
            | Self::WarpBarrier { .. }
            | Self::Async(_) => Class::Barrier,
        }
    }

    /// Returns whether the order of the thread blocks can change the result: an atomic whose result is used, or a sum of
    /// floats.
    pub(crate) fn depends_on_block_order(&self) -> bool {
        match self {
            Self::Atomic { at, ty, d, .. } => {
                at.space != Space::Shared
                    && (d.is_some() || ty.is_float() || matches!(ty, Ty::F16x2 | Ty::Bf16x2))
            }
            Self::Load { order, at, .. } => order.is_strong() && at.space != Space::Shared,
            _ => false,
        }
    }
}

fn unary_class(f: Unary32) -> Class {
    use Unary32 as U;
    match f {
        U::FNeg | U::FAbs | U::FlushSubnormal => Class::Float32,
        U::FSqrt | U::FRsqrt | U::FRcp | U::FEx2 | U::FLg2 | U::FSin | U::FCos | U::FTanh => Class::Special,
        U::HNeg | U::HAbs | U::H2Neg | U::H2Abs => Class::Float16,
        U::Not
        | U::Not16
        | U::Neg
        | U::Neg16
        | U::Abs
        | U::Abs16
        | U::Popc
        | U::Clz
        | U::Brev
        | U::FindU
        | U::FindS => Class::Integer,
        _ => Class::Convert,
    }
}

fn binary_class(f: Binary32) -> Class {
    use Binary32 as B;
    match f {
        B::FDiv => Class::Special,
        B::FAdd | B::FSub | B::FMul | B::FMin | B::FMax | B::FMinNan | B::FMaxNan | B::FCopysign => {
            Class::Float32
        }
        B::HAdd
        | B::HSub
        | B::HMul
        | B::HMin
        | B::HMax
        | B::H2Add
        | B::H2Sub
        | B::H2Mul
        | B::H2Min
        | B::H2Max
        | B::B2Add
        | B::B2Sub
        | B::B2Mul
        | B::B2Min
        | B::B2Max
        | B::BMin
        | B::BMax => Class::Float16,
        B::PackF16 | B::PackBf16 => Class::Convert,
        B::PackHalves => Class::Move,
        _ => Class::Integer,
    }
}

fn ternary_class(f: Ternary32) -> Class {
    use Ternary32 as T;
    match f {
        T::FFma | T::FFmaDown | T::FFmaUp => Class::Float32,
        T::HFma | T::H2Fma | T::BFma | T::B2Fma => Class::Float16,
        T::Dp4aSS | T::Dp4aSU | T::Dp4aUS | T::Dp4aUU => Class::DotProduct,
        _ => Class::Integer,
    }
}

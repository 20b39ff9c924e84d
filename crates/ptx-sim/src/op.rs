//! [`Op`]: a decoded instruction.
//!
//! Immediates and special registers are constant registers of the same file, so an operand is always a register index and the
//! interpreter never has to distinguish kinds. Invariant: every index is in range for its kernel's files.

mod asynchronous;
mod class;
mod registers;

pub(crate) use self::asynchronous::{AsyncOp, GroupLeft, GroupMultiply};
pub use self::class::Class;
pub(crate) use self::registers::Register;
use crate::{
    lanes::{
        Binary32, Binary64, Compare32, Compare64, Extract64, Insert64, Narrow, Quaternary32, Shift64,
        Ternary32, Ternary64, Unary32, Unary64, Wide, Widen,
    },
    types::{Space, Ty},
};

/// Index of a 32-bit register.
pub(crate) type Reg = u16;
/// Index of a predicate register.
pub(crate) type Pred = u16;

/// A register of either width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnyReg {
    R32(Reg),
    R64(u16),
}

/// An instruction with its guard.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// The predicate that must hold, and whether it is negated.
    pub(crate) guard: Option<(Pred, bool)>,
    /// Each lane executes it separately, the next instruction follows, and nothing is waited for.
    pub(crate) is_plain: bool,
    pub(crate) op: Op,
}

impl Instruction {
    pub(crate) fn new(guard: Option<(Pred, bool)>, op: Op) -> Self {
        let is_plain = !matches!(
            op,
            Op::Branch { .. }
                | Op::BranchTable { .. }
                | Op::Exit
                | Op::Trap
                | Op::Barrier { .. }
                | Op::WarpBarrier { .. }
                | Op::Shuffle { .. }
                | Op::Vote { .. }
                | Op::Match { .. }
                | Op::Reduce { .. }
                | Op::LoadMatrix { .. }
                | Op::Matrix { .. }
                | Op::Async(_)
                | Op::Load { .. }
                | Op::Atomic { .. }
        );
        Self { guard, is_plain, op }
    }
}

/// Address of a memory instruction: `space[base + offset]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) space: Space,
    pub(crate) base: AnyReg,
    pub(crate) offset: i64,
}

/// Selects how strongly an access is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// An ordinary access: it must not race.
    Weak,
    /// An ordinary load of memory that no thread writes while the kernel runs (`ld.global.nc`): it may be made earlier.
    NonCoherent,
    /// Volatile or relaxed: it may race with other such accesses.
    Strong,
    /// A load that acquires or a store that releases.
    Ordered,
    /// Either of the two above with the scope of a thread block: ordinary to all other thread blocks.
    OfBlock,
}

impl Order {
    /// Returns whether the access may race with other such accesses of the same thread block.
    pub(crate) fn is_strong(self) -> bool {
        matches!(self, Self::Strong | Self::Ordered | Self::OfBlock)
    }

    /// Returns whether it may race with other such accesses of any thread block.
    pub(crate) fn is_strong_everywhere(self) -> bool {
        matches!(self, Self::Strong | Self::Ordered)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicFn {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareSwap,
    Increment,
    Decrement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixKind {
    /// m16n8k16, f16 inputs, f32 sums.
    F16F32,
    /// m16n8k16, f16 inputs and sums.
    F16F16,
    /// m16n8k16, bf16 inputs, f32 sums.
    Bf16,
    /// m16n8k8, f16 inputs, f32 sums.
    F16K8,
    /// m16n8k8, tf32 inputs, f32 sums.
    Tf32,
    /// m16n8k32, s8 inputs, s32 sums.
    S8,
    /// m16n8k16, s8 inputs, s32 sums.
    S8K16,
}

impl MatrixKind {
    /// Returns the registers of A, of B, and of C and D.
    pub(crate) fn registers(self) -> (usize, usize, usize) {
        match self {
            Self::F16F32 | Self::Bf16 | Self::Tf32 | Self::S8 => (4, 2, 4),
            Self::F16F16 => (4, 2, 2),
            Self::F16K8 | Self::S8K16 => (2, 1, 4),
        }
    }
}

/// Selects how a conversion to an integer or a narrower float rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Unary32 {
        f: Unary32,
        flush: bool,
        d: Reg,
        a: Reg,
    },
    Binary32 {
        f: Binary32,
        flush: bool,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Ternary32 {
        f: Ternary32,
        flush: bool,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Quaternary32 {
        f: Quaternary32,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
        e: Reg,
    },
    Unary64 {
        f: Unary64,
        d: u16,
        a: u16,
    },
    Binary64 {
        f: Binary64,
        d: u16,
        a: u16,
        b: u16,
    },
    Ternary64 {
        f: Ternary64,
        d: u16,
        a: u16,
        b: u16,
        c: u16,
    },
    Shift64 {
        f: Shift64,
        d: u16,
        a: u16,
        b: Reg,
    },
    Extract64 {
        f: Extract64,
        d: u16,
        a: u16,
        b: Reg,
        c: Reg,
    },
    Insert64 {
        f: Insert64,
        d: u16,
        a: u16,
        b: u16,
        c: Reg,
        e: Reg,
    },
    Wide {
        f: Wide,
        d: u16,
        a: Reg,
        b: Reg,
    },
    MadWide {
        f: Wide,
        d: u16,
        a: Reg,
        b: Reg,
        c: u16,
    },
    Widen {
        f: Widen,
        d: u16,
        a: Reg,
    },
    Narrow {
        f: Narrow,
        d: Reg,
        a: u16,
    },
    /// `lop3`: any function of three bits, by its truth table.
    Lookup {
        table: u8,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    /// A conversion without a lane function of its own.
    Convert {
        from: Ty,
        to: Ty,
        rounding: Rounding,
        saturate: bool,
        d: AnyReg,
        a: AnyReg,
    },
    Move32 {
        d: Reg,
        a: Reg,
    },
    Move64 {
        d: u16,
        a: u16,
    },
    MovePred {
        d: Pred,
        a: Pred,
    },
    NotPred {
        d: Pred,
        a: Pred,
    },
    CombinePred {
        f: Combine,
        d: Pred,
        a: Pred,
        b: Pred,
    },
    Select32 {
        d: Reg,
        a: Reg,
        b: Reg,
        p: Pred,
    },
    Select64 {
        d: u16,
        a: u16,
        b: u16,
        p: Pred,
    },
    /// `setp`: `p = combine(a ? b, c)`, `q = combine(!(a ? b), c)`.
    Compare32 {
        f: Compare32,
        flush: bool,
        p: Pred,
        q: Option<Pred>,
        a: Reg,
        b: Reg,
        with: Option<(Combine, Pred, bool)>,
    },
    Compare64 {
        f: Compare64,
        p: Pred,
        q: Option<Pred>,
        a: u16,
        b: u16,
        with: Option<(Combine, Pred, bool)>,
    },
    /// A generic address from or to an address within a space.
    ToGeneric {
        window: u64,
        d: u16,
        a: AnyReg,
    },
    FromGeneric {
        window: u64,
        d: AnyReg,
        a: u16,
    },
    Load {
        at: Address,
        ty: Ty,
        n: u8,
        order: Order,
        d: [AnyReg; 4],
        narrow: [bool; 4],
    },
    Store {
        at: Address,
        ty: Ty,
        n: u8,
        order: Order,
        a: [AnyReg; 4],
    },
    Atomic {
        at: Address,
        f: AtomicFn,
        ty: Ty,
        d: Option<AnyReg>,
        b: AnyReg,
        c: AnyReg,
    },
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u8,
        source_bytes: Option<Reg>,
    },
    CopyCommit,
    /// Waits until at most `pending` groups of a thread are unfinished; `None` waits for everything.
    CopyWait {
        pending: Option<u32>,
    },
    Prefetch,
    /// Orders accesses; a wide one is visible to other thread blocks too.
    Fence {
        is_wide: bool,
    },
    /// `griddepcontrol.launch_dependents`: later launches may begin once each thread block has executed it or ended.
    LetNextBegin,
    /// `griddepcontrol.wait`: the thread waits until earlier launches are done and their writes are visible.
    AwaitEarlier,
    Branch {
        to: u32,
    },
    BranchTable {
        targets: Box<[u32]>,
        index: Reg,
    },
    Exit,
    Trap,
    Barrier {
        id: Reg,
        threads: Option<Reg>,
        reduce: Option<BarrierReduce>,
    },
    WarpBarrier {
        members: Reg,
    },
    Shuffle {
        f: Shuffle,
        d: Reg,
        p: Option<Pred>,
        a: Reg,
        b: Reg,
        c: Reg,
        members: Reg,
    },
    Vote {
        f: Vote,
        d: VoteResult,
        a: Pred,
        negated: bool,
        members: Reg,
    },
    Match {
        d: Reg,
        a: AnyReg,
        members: Reg,
    },
    Reduce {
        f: AtomicFn,
        is_signed: bool,
        d: Reg,
        a: Reg,
        members: Reg,
    },
    ActiveMask {
        d: Reg,
    },
    LoadMatrix {
        at: Address,
        n: u8,
        transposed: bool,
        d: [Reg; 4],
    },
    Matrix {
        kind: MatrixKind,
        d: [Reg; 4],
        a: [Reg; 4],
        b: [Reg; 2],
        c: [Reg; 4],
    },
    Async(AsyncOp),
}

/// A reduction by `bar.red` over the thread block's predicates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierReduce {
    pub(crate) f: BarrierFn,
    pub(crate) a: Pred,
    pub(crate) negated: bool,
    pub(crate) d: VoteResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierFn {
    CountTrue,
    All,
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteResult {
    Pred(Pred),
    Reg(Reg),
}

//! [`Finding`]: a fault of a kernel, with its place.
//!
//! Findings are data for tests to assert on; their text is for people. Invariant: a finding is never a guess: each
//! names an access or an instruction that PTX leaves undefined.

use std::fmt;

use crate::{kernel::Place, types::Space};

/// A thread and the instruction it executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The kernel.
    pub kernel: String,
    /// Index of the thread block in the grid.
    pub block: [u32; 3],
    /// Warp within the thread block.
    pub warp: u32,
    /// Lane within the warp; if several are involved, the first.
    pub lane: u32,
    /// The instruction.
    pub instruction: InstructionPlace,
}

/// An instruction's place in the PTX text and, when compiled with line information, in its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstructionPlace {
    /// Line of the PTX text.
    pub line: u32,
    /// Opcode with modifiers.
    pub mnemonic: String,
    /// Source file and line.
    pub source: Option<(String, u32)>,
}

impl From<&Place> for InstructionPlace {
    fn from(place: &Place) -> Self {
        Self {
            line: place.line,
            mnemonic: place.mnemonic.clone(),
            source: place.source.clone(),
        }
    }
}

/// The kinds of two conflicting accesses, earlier first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Two writes.
    WriteWrite,
    /// A write after an unordered read.
    ReadWrite,
    /// A read after an unordered write.
    WriteRead,
}

/// A kind of fault or undefined behaviour.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// An access outside every allocation, the thread block's shared memory or the thread's local memory. Ends the launch.
    OutOfBounds {
        /// Space of the access.
        space: Space,
        /// First byte accessed.
        address: u64,
        /// Bytes accessed.
        bytes: u32,
        /// Description of the memory nearby.
        nearest: String,
    },
    /// An address that is not a multiple of the access's size. Ends the launch.
    Misaligned {
        /// Space of the access.
        space: Space,
        /// First byte accessed.
        address: u64,
        /// Bytes accessed.
        bytes: u32,
    },
    /// A read of uninitialized memory.
    UninitializedRead {
        /// Space of the access.
        space: Space,
        /// First byte accessed.
        address: u64,
        /// Bytes accessed.
        bytes: u32,
    },
    /// Two warps of a thread block access shared memory without a barrier in between.
    SharedRace {
        /// Offset in shared memory.
        address: u64,
        /// The kinds of the accesses, earlier first.
        conflict: Conflict,
        /// The other warp.
        other_warp: u32,
        /// The other instruction.
        other: InstructionPlace,
    },
    /// Two thread blocks access global memory without an order between them.
    GlobalRace {
        /// The first byte that both access.
        address: u64,
        /// The kinds of the accesses.
        conflict: Conflict,
        /// The other thread.
        other: Box<Location>,
    },
    /// An access to shared memory that an asynchronous copy fills, without a wait for the copy.
    UnfinishedCopy {
        /// Offset in shared memory.
        address: u64,
        /// The copy.
        copy: InstructionPlace,
    },
    /// A matrix operation of a warpgroup, or a bulk copy's barrier, that may not see the writes of threads to shared memory:
    /// `fence.proxy.async` (or `fence.mbarrier_init`) is missing.
    MissingProxyFence {
        /// Offset in shared memory.
        address: u64,
    },
    /// A matrix operation of a warpgroup without `wgmma.fence` since its registers were last touched, or at all.
    MissingGroupFence,
    /// An access to a register of a matrix operation without a wait for it (`wgmma.wait_group`).
    EarlyAccumulator,
    /// The warps of a warpgroup do not execute the same matrix operations with the same operands.
    DivergentGroup,
    /// An invalid matrix descriptor. Ends the launch.
    BadDescriptor {
        /// The descriptor.
        descriptor: u64,
        /// The reason why it is invalid.
        problem: &'static str,
    },
    /// A violation of PTX's rules for a barrier in shared memory, or for a copy that reports to it. Ends the launch.
    BarrierMisuse {
        /// Offset of the barrier in shared memory.
        address: u64,
        /// The violated rule.
        problem: &'static str,
    },
    /// A wait for a phase of a barrier in shared memory that never ends. Ends the launch.
    EndlessWait {
        /// Offset of the barrier in shared memory.
        address: u64,
        /// Arrivals that the phase still needs.
        arrivals_left: u32,
        /// Bytes that are expected and never come; negative if more came than were expected.
        bytes_left: i64,
    },
    /// A barrier that not all threads of a warp reach together. Ends the launch.
    DivergentBarrier {
        /// Lanes that reached it.
        reached: u32,
        /// Lanes that have not exited.
        alive: u32,
    },
    /// A shuffle, vote or matrix operation that not all lanes of its member mask reach. Ends the launch.
    DivergentExchange {
        /// Lanes that reached it.
        reached: u32,
        /// Lanes of the member mask.
        members: u32,
    },
    /// A shuffle that reads a lane which does not take part.
    InactiveLaneRead {
        /// The lane read.
        source_lane: u32,
    },
    /// Warps wait at barriers that no other warp will reach. Ends the launch.
    Deadlock {
        /// Warps waiting.
        waiting_warps: u32,
        /// Warps of the thread block that have not exited.
        alive_warps: u32,
    },
    /// All unfinished thread blocks that a device holds at once load the same values again and again, and none writes. Ends the launch.
    EndlessSpin {
        /// First byte that is loaded.
        address: u64,
        /// Thread blocks that wait.
        waiting_blocks: u64,
        /// Thread blocks that do not fit on the device yet.
        blocks_not_begun: u64,
    },
    /// A warp executed more instructions than the launch allows. Ends the launch.
    InstructionLimit {
        /// The limit.
        limit: u64,
    },
    /// A `trap` instruction. Ends the launch.
    Trap,
    /// A read of bytes that an earlier launch writes, before the thread waits for it (`griddepcontrol.wait`).
    EarlyRead {
        /// First byte accessed.
        address: u64,
    },
    /// A load after the wait, of bytes that an earlier launch writes, that may be made before the wait (`ld.global.nc`).
    StaleRead {
        /// First byte accessed.
        address: u64,
    },
    /// A write before the thread waits for earlier launches, which may still read or write there.
    EarlyWrite {
        /// First byte accessed.
        address: u64,
    },
    /// A launch that may begin early and in which no thread waits: it may end before earlier ones.
    NoWait,
}

/// A fault or undefined behaviour of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The thread and the instruction.
    pub location: Location,
    /// The fault.
    pub kind: FindingKind,
}

impl FindingKind {
    /// Returns whether a device would stop here or could not continue.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::OutOfBounds { .. }
                | Self::Misaligned { .. }
                | Self::DivergentBarrier { .. }
                | Self::DivergentExchange { .. }
                | Self::Deadlock { .. }
                | Self::BadDescriptor { .. }
                | Self::BarrierMisuse { .. }
                | Self::EndlessWait { .. }
                | Self::EndlessSpin { .. }
                | Self::InstructionLimit { .. }
                | Self::Trap
        )
    }
}

impl fmt::Display for InstructionPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} `{}`", self.line, self.mnemonic)?;
        if let Some((file, line)) = &self.source {
            write!(f, " ({file}:{line})")?;
        }
        Ok(())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.block;
        write!(
            f,
            "{} block ({x}, {y}, {z}) warp {} lane {} at {}",
            self.kernel, self.warp, self.lane, self.instruction
        )
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteWrite => "writes what was written",
            Self::ReadWrite => "writes what was read",
            Self::WriteRead => "reads what was written",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.location)?;
        match &self.kind {
            FindingKind::OutOfBounds {
                space,
                address,
                bytes,
                nearest,
            } => write!(
                f,
                "{bytes} bytes at {space} {address:#x} are out of bounds ({nearest})"
            ),
            FindingKind::Misaligned {
                space,
                address,
                bytes,
            } => {
                write!(f, "{bytes} bytes at {space} {address:#x} are misaligned")
            }
            FindingKind::UninitializedRead {
                space,
                address,
                bytes,
            } => {
                write!(f, "{bytes} bytes at {space} {address:#x} were never written")
            }
            FindingKind::SharedRace {
                address,
                conflict,
                other_warp,
                other,
            } => write!(
                f,
                "race: {conflict} at shared {address:#x} by warp {other_warp} at {other} without a barrier between"
            ),
            FindingKind::GlobalRace {
                address,
                conflict,
                other,
            } => write!(f, "race: {conflict} at global {address:#x} by {other}"),
            FindingKind::UnfinishedCopy { address, copy } => {
                write!(
                    f,
                    "shared {address:#x} is still being filled by {copy}; a wait is missing"
                )
            }
            FindingKind::MissingProxyFence { address } => write!(
                f,
                "shared {address:#x} is read by an asynchronous operation; a fence.proxy.async after the write is missing"
            ),
            FindingKind::MissingGroupFence => {
                f.write_str("its registers were accessed since the last wgmma.fence")
            }
            FindingKind::EarlyAccumulator => f.write_str(
                "accesses a register of a matrix operation that is not finished; a wgmma.wait_group is missing",
            ),
            FindingKind::DivergentGroup => {
                f.write_str("the warps of the warpgroup do not execute the same matrix operations")
            }
            FindingKind::BadDescriptor { descriptor, problem } => {
                write!(f, "the matrix descriptor {descriptor:#018x}: {problem}")
            }
            FindingKind::BarrierMisuse { address, problem } => {
                write!(f, "the barrier at shared {address:#x}: {problem}")
            }
            FindingKind::EndlessWait {
                address,
                arrivals_left,
                bytes_left,
            } => write!(
                f,
                "deadlock: the phase of the barrier at shared {address:#x} never ends: {arrivals_left} arrivals and {bytes_left} bytes are left"
            ),
            FindingKind::DivergentBarrier { reached, alive } => {
                write!(f, "barrier reached by lanes {reached:#010x} of {alive:#010x}")
            }
            FindingKind::DivergentExchange { reached, members } => {
                write!(
                    f,
                    "reached by lanes {reached:#010x}, the member mask has {members:#010x}"
                )
            }
            FindingKind::InactiveLaneRead { source_lane } => {
                write!(f, "reads lane {source_lane}, which does not take part")
            }
            FindingKind::Deadlock {
                waiting_warps,
                alive_warps,
            } => write!(
                f,
                "deadlock: {waiting_warps} of {alive_warps} warps wait at a barrier"
            ),
            FindingKind::EndlessSpin {
                address,
                waiting_blocks,
                blocks_not_begun,
            } => write!(
                f,
                "deadlock: waits for a write at global {address:#x} that none will make: {waiting_blocks} thread blocks wait, {blocks_not_begun} more never fit on the device"
            ),
            FindingKind::InstructionLimit { limit } => {
                write!(f, "more than {limit} instructions in one warp")
            }
            FindingKind::Trap => f.write_str("trap"),
            FindingKind::EarlyRead { address } => write!(
                f,
                "global {address:#x} is read before the wait for an earlier launch that writes it"
            ),
            FindingKind::StaleRead { address } => write!(
                f,
                "global {address:#x} is read by a load that may move before the wait for an earlier launch that writes it"
            ),
            FindingKind::EarlyWrite { address } => {
                write!(
                    f,
                    "global {address:#x} is written before the wait for earlier launches"
                )
            }
            FindingKind::NoWait => f.write_str(
                "no thread waits for earlier launches, though the launch may begin before they are done",
            ),
        }
    }
}

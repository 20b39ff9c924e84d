//! [`MemoryLimit`]: the most memory that a process can have, and the cause of that limit.
//!
//! Errors carry it.

use std::fmt;

use crate::memory_text::size;

/// The most memory that this process can have, and the cause of that limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The memory of the machine or control group, swap included.
    Machine {
        /// All of it.
        n_bytes: u64,
    },
    /// The limit of the process's address space (`ulimit -v`).
    AddressSpace {
        /// Bytes that it leaves to a load.
        n_bytes: u64,
    },
}

impl MemoryLimit {
    /// Returns the lower of two bounds.
    pub(crate) fn lower(memory_bytes: u64, room_bytes: Option<u64>) -> Self {
        match room_bytes {
            Some(n_bytes) if n_bytes < memory_bytes => Self::AddressSpace { n_bytes },
            _ => Self::Machine {
                n_bytes: memory_bytes,
            },
        }
    }

    /// Returns the bytes of the bound.
    pub fn n_bytes(self) -> u64 {
        match self {
            Self::Machine { n_bytes } | Self::AddressSpace { n_bytes } => n_bytes,
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = size(usize::try_from(self.n_bytes()).unwrap_or(usize::MAX));
        match self {
            Self::Machine { .. } => write!(f, "this machine has {size} in all"),
            Self::AddressSpace { .. } => write!(f, "the limit of `ulimit -v` leaves {size}"),
        }
    }
}

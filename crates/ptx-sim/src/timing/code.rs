//! [`Assembled`]: the assembler's results for a kernel that affect its time.
//!
//! A kernel is PTX: registers and bytes of code differ from GPU to GPU, and this crate has no list of them. Invariant: a kernel whose code size
//! is unknown fetches no code.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::Kernel;

/// Holds the assembler's result for a kernel and a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Assembled {
    /// Registers of a thread.
    pub n_registers: u32,
    /// Bytes of machine code; 0 if they are not known.
    pub code_bytes: u32,
}

impl Assembled {
    /// Makes the result for a kernel with this many registers, whose code takes no time to arrive.
    pub fn without_code(n_registers: u32) -> Self {
        Self {
            n_registers,
            code_bytes: 0,
        }
    }

    /// Returns a key that tells the code of kernels apart, in one process.
    pub(super) fn key(self, kernel: &Kernel) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&kernel.name, kernel.code.len(), kernel.n_regs32, self).hash(&mut hasher);
        hasher.finish()
    }
}

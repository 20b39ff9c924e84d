//! Computes how many thread blocks a multiprocessor holds at once. The timing model and launches use it.

/// Resources of a multiprocessor that its thread blocks share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multiprocessor {
    pub(crate) max_warps: u32,
    pub(crate) max_blocks: u32,
    pub(crate) n_registers: u32,
    pub(crate) shared_bytes: u32,
}

impl Multiprocessor {
    /// A multiprocessor of an H200.
    pub(crate) const OF_H200: Self = Self {
        max_warps: 64,
        max_blocks: 32,
        n_registers: 65_536,
        shared_bytes: 228 << 10,
    };
    /// Number of multiprocessors of an H200.
    pub(crate) const N_OF_H200: u32 = 132;

    /// Returns the number of thread blocks that it holds, each with so many threads, registers a thread and bytes of shared memory; 0
    /// if one does not fit.
    ///
    /// Source: CUDA C++ programming guide, "Maximize utilization": registers are given to warps in units of 256, and each thread block
    /// takes an additional 1 KiB of shared memory from compute capability 8.0 on, in units of 128 bytes.
    pub(crate) fn resident_blocks(&self, n_threads: u32, n_registers: u32, shared_bytes: u32) -> u32 {
        let n_warps = n_threads.div_ceil(32).max(1);
        let registers_of_warp = (n_registers.max(1) * 32).next_multiple_of(256);
        // Registers belong to one of the four schedulers, and so do warps.
        let warps_by_registers = self.n_registers / 4 / registers_of_warp * 4;
        let by_shared = self.shared_bytes / (shared_bytes.next_multiple_of(128) + 1024);
        (self.max_warps / n_warps)
            .min(warps_by_registers / n_warps)
            .min(by_shared)
            .min(self.max_blocks)
    }
}

//! [`DeviceProfile`]: the figures of a GPU that the timing model computes with.
//!
//! Separate from the model because these are facts of hardware, each with its source, and the model's own assumptions are not.
//! Invariant: a figure that was not looked up in a published source is marked as such, or as an assumption.
//!
//! Sources. (P) CUDA C++ programming guide: "Compute capabilities" (registers, warps, shared memory) and "Arithmetic
//! instructions" (results per clock and multiprocessor). (M) from memory, not looked up: they are meant to be those of Luo et al.,
//! "Benchmarking and dissecting the Nvidia Hopper GPU architecture", arXiv 2402.13499, and its successor 2501.12084, whose tables were not
//! read. Their Hopper GPU is an H800 PCIe by summaries of them, and not the SXM H100 that is described here. (L) table of L2 bandwidths, PMC10448217: 7219 and
//! 8986 GB/s, which is 5120 bytes a clock. (W) "No bubbles" of Hazy Research: 1.3 us for a dependent launch in a graph of an H100.
//! (C) rates of plain copies in device memory that were measured on such cards: 4.3 TB/s (H200), 3.0 TB/s (H100).
//! (D) the makers' data sheets. (G) issue 569 of pegainfer-project/pegainfer: between two empty kernels of an H100 at 1755 MHz programmatic
//! dependent launch takes 0.96 us away; decision record 57 has what else was published.

/// A GPU, as far as the timing model knows it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceProfile {
    /// Its name.
    pub name: &'static str,
    /// Which column of `kernels/ptx.lock` has its registers: the architecture's name.
    pub architecture: &'static str,
    /// Streaming multiprocessors. (D)
    pub n_multiprocessors: u32,
    /// Clock, in GHz. From memory, not looked up. (M)
    pub clock_ghz: f64,
    /// Bytes of device memory. (D)
    pub memory_bytes: u64,
    /// Registers of a multiprocessor. (P)
    pub n_registers: u32,
    /// Warps that a multiprocessor holds. (P)
    pub max_warps: u32,
    /// Thread blocks that a multiprocessor holds. (P)
    pub max_blocks: u32,
    /// Shared memory of a multiprocessor. (P)
    pub shared_bytes: u32,
    /// Shared memory and L1 together. (P)
    pub l1_bytes: u32,
    /// The L2 cache. (D)
    pub l2_bytes: u64,
    /// What the L2 gives to all multiprocessors, in bytes a clock. (L)
    pub l2_bytes_per_clock: f64,
    /// What one multiprocessor takes from the L2, in bytes a clock.
    pub l2_port_bytes_per_clock: f64,
    /// What device memory gives, in bytes a second: the rate of a copy. (C)
    pub dram_bytes_per_s: f64,
    /// The lane operations of a class per clock and multiprocessor. (P)
    pub lanes: Lanes,
    /// Clocks until a result can be used.
    pub latency: Latencies,
    /// Multiplications and additions of f16 a clock on a multiprocessor's tensor cores, as `mma.sync` reaches them; of s8 twice.
    pub matrix_f16_per_clock: f64,
    /// The same as warpgroups reach them with `wgmma`; of no meaning where a GPU has none.
    pub group_f16_per_clock: f64,
    /// From the end of a launch to the begin of the next that depends on it, in a graph. (W), which has an H100; an assumption for others.
    pub launch_us: f64,
    /// From the end of a launch to the moment when threads of the next continue that have begun before and wait for it, with programmatic dependent
    /// launch. (G), and half of what that measured is believed.
    pub dependent_us: f64,
}

/// Results per clock and multiprocessor, by class. (P)
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Lanes {
    /// f32.
    pub float32: f64,
    /// Integers, `dp4a` among them.
    pub integer: f64,
    /// Pairs of f16.
    pub float16: f64,
    /// f64.
    pub float64: f64,
    /// Roots, exponentials and their like.
    pub special: f64,
    /// Conversions.
    pub convert: f64,
    /// Shuffles.
    pub shuffle: f64,
}

/// Clocks from the issue of an instruction to the use of its result.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Latencies {
    /// Arithmetic of f32 and integers. (M)
    pub arithmetic: f64,
    /// Conversions. An assumption.
    pub convert: f64,
    /// Special functions. An assumption.
    pub special: f64,
    /// Shuffles, votes and their like. (M)
    pub shuffle: f64,
    /// Shared memory. (M)
    pub shared: f64,
    /// Global memory that is in L1. (M)
    pub l1: f64,
    /// Global memory that is in L2. (M)
    pub l2: f64,
    /// Global memory that is in neither, without a queue. (M)
    pub dram: f64,
    /// `mma.sync`. (M)
    pub matrix: f64,
    /// A barrier, from the last warp's arrival. An assumption.
    pub barrier: f64,
    /// A branch that is taken. An assumption.
    pub branch: f64,
}

const HOPPER_LATENCY: Latencies = Latencies {
    arithmetic: 4.0,
    convert: 8.0,
    special: 20.0,
    shuffle: 24.0,
    shared: 30.0,
    l1: 40.0,
    l2: 263.0,
    dram: 479.0,
    matrix: 33.0,
    barrier: 20.0,
    branch: 8.0,
};

/// The H100 in its SXM form.
const H100: DeviceProfile = DeviceProfile {
    name: "h100",
    architecture: "sm_90a",
    n_multiprocessors: 132,
    clock_ghz: 1.755,
    memory_bytes: 80 << 30,
    n_registers: 65_536,
    max_warps: 64,
    max_blocks: 32,
    shared_bytes: 228 << 10,
    l1_bytes: 256 << 10,
    l2_bytes: 50 << 20,
    l2_bytes_per_clock: 5120.0,
    l2_port_bytes_per_clock: 64.0,
    dram_bytes_per_s: 3.0e12,
    lanes: Lanes {
        float32: 128.0,
        integer: 64.0,
        float16: 128.0,
        float64: 64.0,
        special: 16.0,
        convert: 64.0,
        shuffle: 32.0,
    },
    latency: HOPPER_LATENCY,
    // 2048 by the data sheet, of which `mma.sync` reaches 62 %: the share from memory, not looked up. (M)
    matrix_f16_per_clock: 1270.0,
    // 2048 by the data sheet; three quarters of it, 712 TFLOP/s, is an assumption: large products are held back by the power limit.
    group_f16_per_clock: 1536.0,
    launch_us: 1.3,
    dependent_us: 0.8,
};

impl DeviceProfile {
    /// Every device that the model knows.
    pub const ALL: [Self; 3] = [
        H100,
        Self {
            name: "h200",
            memory_bytes: 141 << 30,
            dram_bytes_per_s: 4.3e12,
            ..H100
        },
        Self {
            name: "a100",
            architecture: "sm_80",
            n_multiprocessors: 108,
            clock_ghz: 1.41,
            shared_bytes: 164 << 10,
            l1_bytes: 192 << 10,
            l2_bytes: 40 << 20,
            // No copy on an A100 was at hand: the H100's share (3.0 of 3.35 TB/s) of the 2.04 TB/s of the data sheet.
            dram_bytes_per_s: 1.83e12,
            lanes: Lanes {
                float32: 64.0,
                float64: 32.0,
                ..H100.lanes
            },
            // From memory, not looked up. (M)
            latency: Latencies {
                shared: 29.0,
                l1: 38.0,
                l2: 262.0,
                dram: 466.0,
                ..HOPPER_LATENCY
            },
            // All of the data sheet's: an assumption that `mma.sync` reaches it.
            matrix_f16_per_clock: 1024.0,
            ..H100
        },
    ];

    /// The device of a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        const ALL: &[DeviceProfile] = &DeviceProfile::ALL;
        ALL.iter().find(|device| device.name == name)
    }

    /// What device memory gives, in bytes a clock.
    pub fn dram_bytes_per_clock(&self) -> f64 {
        self.dram_bytes_per_s / (self.clock_ghz * 1e9)
    }

    /// Thread blocks that a multiprocessor holds at once, each with so many threads, registers a thread and bytes of shared memory; 0
    /// where one does not fit.
    ///
    /// Source: CUDA C++ programming guide, "Maximize utilization": registers are given to warps in units of 256, and each thread block
    /// takes 1 KiB of shared memory for itself from compute capability 8.0 on, in units of 128 bytes.
    pub fn resident_blocks(&self, n_threads: u32, n_registers: u32, shared_bytes: u32) -> u32 {
        let n_warps = n_threads.div_ceil(32).max(1);
        let registers_of_warp = (n_registers.max(1) * 32).next_multiple_of(256);
        // Registers belong to the four schedulers, and so do warps.
        let warps_by_registers = self.n_registers / 4 / registers_of_warp * 4;
        let by_shared = self.shared_bytes / (shared_bytes.next_multiple_of(128) + 1024);
        (self.max_warps / n_warps)
            .min(warps_by_registers / n_warps)
            .min(by_shared)
            .min(self.max_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_by_registers_warps_and_shared_memory() {
        let device = DeviceProfile::find("h100").unwrap();
        let check = |threads, registers, shared, expected| {
            assert_eq!(
                device.resident_blocks(threads, registers, shared),
                expected,
                "{threads} threads, {registers} registers, {shared} bytes"
            );
        };
        check(128, 32, 0, 16);
        check(128, 115, 0, 4);
        check(256, 86, 0, 2);
        check(256, 155, 0, 1);
        check(32, 16, 0, 32);
        check(128, 32, 100 << 10, 2);
        check(1024, 255, 0, 0);
    }
}

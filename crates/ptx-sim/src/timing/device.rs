//! [`DeviceProfile`]: the figures of a GPU that the timing model computes with.
//!
//! These are facts of hardware, each with its source; the model's own assumptions are elsewhere.
//! Invariant: a figure that was not looked up in a published source is marked as such, or as an assumption.
//!
//! Sources; note 104 of docs/notebook/kernels.md has the figures of each, their addresses, and their differences.
//! (P) CUDA C++ programming guide: "Compute capabilities" (registers, warps, shared memory) and "Arithmetic instructions" (results per clock
//! and multiprocessor). (D) the makers' data sheets and white papers. (B) github.com/te42kyfo/gpu-benches: logs of an H100 PCIe, an A100,
//! an L40, and of what it calls an H200, whose memory has the rate of a GH200's. (L) github.com/HPMLL/NVIDIA-Hopper-Benchmark: logs by the
//! authors of arXiv 2402.13499 and 2501.12084 of an H800 PCIe, an A100 PCIe and an RTX 4090. (S) "CUDA Performance Study" of an H100 SXM5 at 1.98 GHz.
//! (T) a report of MT4G of an H100 80GB HBM3. (K) github.com/markdewing/AI_kernels, latency/README.md: GH200, RTX 4090. (A) Azure's AI
//! benchmarking guide: BabelStream and cuBLASLt on an H200, an H100 SXM and an A100 SXM. (R) github.com/waynehacking8/blackwell-tensorcore-kernels: whole
//! products and attention on an H100 SXM5. (I) latencies of instructions: github.com/NMSU-PEARL/GPUs-ISA-Latencies (Turing), PPT-GPU (Volta), and
//! Accel-Sim's description of an RTX 3070. (W) "No bubbles" of Hazy Research: 1.3 us for a dependent launch in a graph of an
//! H100. (G) issue 569 of pegainfer-project/pegainfer: between two empty kernels of an H100 at 1755 MHz programmatic dependent launch takes 0.96 us
//! away; note 57 has what else was published. (H) "Analyzing Modern NVIDIA GPU cores", arXiv 2503.20481, of an RTX A6000: lines of
//! instructions come by a stream buffer, probably of 16 entries. (F) pull request 37 of FlashGPU-Sim/FlashGPU-Sim: code of an RTX 5090 becomes
//! slower beyond 64 KB and again beyond 132 to 148 KB. (N) no published figure was found; the number is an assumption.

use crate::{Kernel, LaunchConfig, occupancy::Multiprocessor};

/// A GPU, as far as the timing model knows it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceProfile {
    /// Its name.
    pub name: &'static str,
    /// The column of `kernels/ptx.lock` with its registers: the architecture's name.
    pub architecture: &'static str,
    /// Streaming multiprocessors. (D)
    pub n_multiprocessors: u32,
    /// Clock, in GHz, that a card sustains while it computes. It is between the base of the data sheet and the highest that (S) and (T) saw, 1.98
    /// GHz for an H100 SXM.
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
    /// Bandwidth of L2 to all multiprocessors together, in bytes a clock. (B)
    pub l2_bytes_per_clock: f64,
    /// Bytes of code that a multiprocessor keeps from launch to launch, the most recent first: the larger cache of (F). That it keeps them is an
    /// assumption.
    pub code_cache_bytes: u64,
    /// Lines of code that are requested after the one that a warp needs. (H)
    pub code_lines_ahead: usize,
    /// Bandwidth of L2 to one multiprocessor, in bytes a clock. (N)
    pub l2_port_bytes_per_clock: f64,
    /// Bandwidth of device memory, in bytes a second: between the rates of a copy and of reading alone. (A)
    pub dram_bytes_per_s: f64,
    /// The lane operations of a class per clock and multiprocessor. (P)
    pub lanes: Lanes,
    /// Clocks until a result can be used.
    pub latency: Latencies,
    /// Multiplications and additions of f16 a clock on a multiprocessor's tensor cores, as `mma.sync` reaches them, with sums in f32; of s8 twice.
    pub matrix_f16_per_clock: f64,
    /// The same as warpgroups reach them with `wgmma`; meaningless if a GPU has none.
    pub group_f16_per_clock: f64,
    /// From the end of a launch to the begin of the next that depends on it, in a graph. (W). (B) has 1.26 to 1.37 us from begin to begin of small
    /// kernels, for an H100 and an A100 alike, and 0.94 to 1.07 on an L40. These include the time of such a kernel, so this is too long rather than
    /// too short.
    pub launch_us: f64,
    /// With programmatic dependent launch: from the end of a launch to the moment when threads of the next, which have begun before and wait for
    /// it, continue. (G), of whose measured gain half is assumed.
    pub dependent_us: f64,
}

/// Results per clock and multiprocessor, by class. (P)
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Lanes {
    /// f32.
    pub float32: f64,
    /// Integers, including `dp4a`.
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
    /// Arithmetic of f32 and integers: 4 on Volta and Turing (I), 4.02 for the integer instructions that (L) timed on an H800.
    pub arithmetic: f64,
    /// Conversions. (N)
    pub convert: f64,
    /// Special functions: 21 in Accel-Sim's RTX 3070 (I).
    pub special: f64,
    /// Shuffles, votes and their like. (N)
    pub shuffle: f64,
    /// Shared memory: 29.9 (T) and 28.6 (S) on an H100.
    pub shared: f64,
    /// Global memory that is in L1: 40.2 (S), 40 (K), 38 (T), 34 (B), 32 (L) on Hopper.
    pub l1: f64,
    /// Global memory that is in L2, in the near half of it: 259.9 (S), 264.5 (L), 265.5 (B), 281 (K) on Hopper. The far half takes some 200 more.
    pub l2: f64,
    /// Global memory that is in neither, without a queue. On Hopper, each from long chains of loads at random places: 690 cycles at 1.98 GHz (K),
    /// which are 348 ns; 570.5 at 1.98 GHz (S), of whose loads a fifth was in L2 by the sizes, so 648 without these, 327 ns; 650 to 658 at 1.755
    /// GHz with HBM2e (B, L).
    pub dram: f64,
    /// `mma.sync`. (N), meant to be that of arXiv 2206.02874 and 2402.13499, which were not read.
    pub matrix: f64,
    /// A barrier, from the last warp's arrival. (N)
    pub barrier: f64,
    /// A branch that is taken. (N); Volta's description in PPT-GPU has 4 (I).
    pub branch: f64,
    /// From the end of a thread block to the first instruction of the one that takes its place: the time for a
    /// thread block in (B)'s streams with one load a thread, less the latency of that load and its few instructions. 204 to 246 ns.
    pub block: f64,
}

const HOPPER_LATENCY: Latencies = Latencies {
    arithmetic: 4.0,
    convert: 8.0,
    special: 21.0,
    shuffle: 24.0,
    shared: 30.0,
    l1: 40.0,
    l2: 263.0,
    dram: 600.0,
    matrix: 33.0,
    barrier: 20.0,
    branch: 8.0,
    block: 370.0,
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
    // 9.77 TB/s in (B) by 23 MB, at the highest clock.
    l2_bytes_per_clock: 4930.0,
    code_cache_bytes: 128 << 10,
    code_lines_ahead: 16,
    l2_port_bytes_per_clock: 64.0,
    // A copy has 2.90 TB/s, reading alone 3.18. (A)
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
    // 2048 by the data sheet, of which `mma.sync` reaches 62 %: the share is meant to be that of arXiv 2402.13499, which was not read. Attention by `mma.sync`
    // reaches 388 of 989 TFLOP/s, softmax and all. (R)
    matrix_f16_per_clock: 1270.0,
    // 2048 by the data sheet; three quarters of it, 712 TFLOP/s. Whole products reach 762 to 830. (R)
    group_f16_per_clock: 1536.0,
    launch_us: 1.3,
    dependent_us: 0.8,
};

impl DeviceProfile {
    /// Every device that the model knows.
    pub const ALL: [Self; 6] = [
        H100,
        Self {
            name: "h200",
            memory_bytes: 141 << 30,
            // A copy has 4.01 TB/s, reading alone 4.48. (A)
            dram_bytes_per_s: 4.3e12,
            ..H100
        },
        Self {
            name: "h100-pcie",
            n_multiprocessors: 114,
            // 6.92 TB/s. (B)
            l2_bytes_per_clock: 3940.0,
            // Two streams read and one written have 1.83 TB/s, reading alone 1.94. (B)
            dram_bytes_per_s: 1.83e12,
            latency: Latencies {
                dram: 650.0,
                ..HOPPER_LATENCY
            },
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
            // 5.42 TB/s. (B)
            l2_bytes_per_clock: 3850.0,
            // A copy has 1.61 TB/s, reading alone 1.75 (A); (B) has 1.73 and 1.77.
            dram_bytes_per_s: 1.7e12,
            lanes: Lanes {
                float32: 64.0,
                float64: 32.0,
                ..H100.lanes
            },
            latency: Latencies {
                // Accel-Sim's RTX 3070. (I)
                shared: 29.0,
                // (B): 36.0, 210.9 and 570; (L): 32.7, 202.8 and 566 at 1.395 GHz.
                l1: 36.0,
                l2: 211.0,
                dram: 570.0,
                block: 320.0,
                ..HOPPER_LATENCY
            },
            // All of the data sheet's, 312 TFLOP/s: an assumption that `mma.sync` reaches it. Whole products reach 257. (A)
            matrix_f16_per_clock: 1024.0,
            ..H100
        },
        Self {
            name: "rtx-4090",
            architecture: "sm_89",
            n_multiprocessors: 128,
            clock_ghz: 2.52,
            memory_bytes: 24 << 30,
            max_warps: 48,
            max_blocks: 24,
            shared_bytes: 100 << 10,
            l1_bytes: 128 << 10,
            l2_bytes: 72 << 20,
            // An L40's 5.2 TB/s, for each multiprocessor and clock. (B)
            l2_bytes_per_clock: 1900.0,
            // An L40 has 89 % of its data sheet's rate with a stream read and one written, and 98 % if it only reads (B): between these, of 1.008 TB/s.
            dram_bytes_per_s: 0.93e12,
            lanes: Lanes {
                float64: 2.0,
                ..H100.lanes
            },
            latency: Latencies {
                // 36.0, 284.8 and 571 at 2.235 GHz, which are 255 ns from device memory. (L)
                l1: 36.0,
                l2: 285.0,
                dram: 644.0,
                block: 500.0,
                ..HOPPER_LATENCY
            },
            // The white paper's 165 TFLOP/s with sums in f32. Products of s8 have four times that, where this model gives them twice.
            matrix_f16_per_clock: 256.0,
            launch_us: 1.0,
            // Launches do not begin early before Hopper.
            dependent_us: 1.0,
            ..H100
        },
        // A Blackwell for workstations, for which others published figures of decode steps. (D), unless a figure says more.
        Self {
            name: "rtx-pro-6000",
            architecture: "sm_120",
            n_multiprocessors: 188,
            clock_ghz: 2.4,
            memory_bytes: 96 << 30,
            max_warps: 48,
            max_blocks: 24,
            shared_bytes: 100 << 10,
            l1_bytes: 128 << 10,
            l2_bytes: 128 << 20,
            // An L40's figure for each multiprocessor and clock: an assumption.
            l2_bytes_per_clock: 2790.0,
            // 1.792 TB/s, and the product of a model's head reaches 1.665 in pull request 1789 of kekzl/imp.
            dram_bytes_per_s: 1.665e12,
            lanes: Lanes {
                float64: 2.0,
                ..H100.lanes
            },
            // The figures of an RTX 4090: an assumption.
            latency: Latencies {
                l1: 36.0,
                l2: 285.0,
                dram: 644.0,
                block: 500.0,
                ..HOPPER_LATENCY
            },
            matrix_f16_per_clock: 256.0,
            launch_us: 1.0,
            ..H100
        },
    ];

    /// Finds the device of a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        const ALL: &[DeviceProfile] = &DeviceProfile::ALL;
        ALL.iter().find(|device| device.name == name)
    }

    /// Returns the bandwidth of device memory, in bytes a clock.
    pub fn dram_bytes_per_clock(&self) -> f64 {
        self.dram_bytes_per_s / (self.clock_ghz * 1e9)
    }

    /// Returns the thread blocks that a multiprocessor holds at once, each with so many threads, registers a thread and bytes of shared memory; 0
    /// if one does not fit.
    pub fn resident_blocks(&self, n_threads: u32, n_registers: u32, shared_bytes: u32) -> u32 {
        let multiprocessor = Multiprocessor {
            max_warps: self.max_warps,
            max_blocks: self.max_blocks,
            n_registers: self.n_registers,
            shared_bytes: self.shared_bytes,
        };
        multiprocessor.resident_blocks(n_threads, n_registers, shared_bytes)
    }

    /// Returns the thread blocks of a launch that the device holds at once, by threads and shared memory; registers may allow fewer.
    pub fn holds(&self, kernel: &Kernel, config: &LaunchConfig) -> u64 {
        let n_threads = config.block.iter().product();
        let n_of_one = self.resident_blocks(n_threads, 1, kernel.shared_bytes + config.shared_bytes);
        u64::from(n_of_one) * u64::from(self.n_multiprocessors)
    }
}

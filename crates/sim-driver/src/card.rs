//! [`Card`] holds the multiprocessor limits of a GPU, by compute capability.
//!
//! The figures are from the CUDA C++ programming guide, "Compute capabilities"; the number of multiprocessors is that of one GPU of the
//! kind. Invariant: an unlisted capability gets the limits of the newest older one.

use tokenmill_ptx_sim::{DeviceProfile, Kernel, LaunchConfig};

/// Holds the limits of a kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Lowest compute capability of this kind.
    pub(crate) capability: (i32, i32),
    pub(crate) n_multiprocessors: u32,
    /// Shared memory of a multiprocessor.
    pub(crate) shared_bytes: u32,
    /// Largest shared memory of a thread block, including static shared memory.
    pub(crate) block_shared_bytes: u32,
    pub(crate) max_warps: u32,
    pub(crate) max_blocks: u32,
}

/// Lists every kind, the oldest first: T4, A100, RTX 3090, RTX 4090, H200, B200, RTX 5090.
const ALL: [Card; 7] = [
    Card::new((7, 5), 40, [64, 64], [32, 16]),
    Card::new((8, 0), 108, [164, 163], [64, 32]),
    Card::new((8, 6), 82, [100, 99], [48, 16]),
    Card::new((8, 9), 128, [100, 99], [48, 24]),
    Card::new((9, 0), 132, [228, 227], [64, 32]),
    Card::new((10, 0), 148, [228, 227], [64, 32]),
    Card::new((12, 0), 170, [100, 99], [48, 24]),
];

impl Card {
    const fn new(
        capability: (i32, i32),
        n_multiprocessors: u32,
        [shared_kib, block_kib]: [u32; 2],
        [max_warps, max_blocks]: [u32; 2],
    ) -> Self {
        Self {
            capability,
            n_multiprocessors,
            shared_bytes: shared_kib << 10,
            block_shared_bytes: block_kib << 10,
            max_warps,
            max_blocks,
        }
    }

    /// Finds the limits of a compute capability.
    pub(crate) fn of(capability: (i32, i32)) -> Self {
        let is_older = |card: &&Self| card.capability <= capability;
        *ALL.iter().rev().find(is_older).unwrap_or(&ALL[0])
    }

    /// Returns the timing model's profile with these limits.
    fn profile(&self) -> DeviceProfile {
        let mut profile = DeviceProfile::find("h200")
            .expect("a device of that name")
            .clone();
        profile.n_multiprocessors = self.n_multiprocessors;
        profile.shared_bytes = self.shared_bytes;
        profile.max_warps = self.max_warps;
        profile.max_blocks = self.max_blocks;
        profile
    }

    /// Computes how many thread blocks of a cooperative launch the GPU holds at once.
    pub(crate) fn holds(&self, kernel: &Kernel, config: &LaunchConfig) -> u64 {
        self.profile().holds(kernel, config)
    }

    /// Computes how many thread blocks of a kernel a multiprocessor holds. The simulator has no register allocation, so it assumes the most
    /// registers that the launch bounds allow; a driver that compiled the kernel may report more blocks.
    pub(crate) fn resident_blocks(&self, bounds: Bounds, n_threads: u32, shared_bytes: u32) -> u32 {
        let n_registers = bounds.registers(self.profile().n_registers);
        self.profile()
            .resident_blocks(n_threads, n_registers, shared_bytes)
    }
}

/// Holds the launch bounds of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Largest number of threads of a block.
    pub(crate) max_threads: u32,
    /// Thread blocks that must fit on a multiprocessor.
    pub(crate) min_blocks: u32,
}

impl Bounds {
    /// Computes the largest number of registers of a thread, in units of 8.
    pub(crate) fn registers(self, of_multiprocessor: u32) -> u32 {
        const MOST: u32 = 255;
        let n_threads = self.max_threads.max(1) * self.min_blocks.max(1);
        (of_multiprocessor / n_threads / 8 * 8).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_that_is_not_listed_is_like_the_one_before() {
        let check =
            |capability, expected| assert_eq!(Card::of(capability).capability, expected, "{capability:?}");
        check((8, 0), (8, 0));
        check((8, 7), (8, 6));
        check((8, 9), (8, 9));
        check((9, 0), (9, 0));
        check((10, 3), (10, 0));
        check((12, 1), (12, 0));
        check((5, 0), (7, 5));
    }

    #[test]
    fn registers_warps_and_shared_memory_bound_what_is_resident() {
        let check =
            |capability, [max_threads, min_blocks]: [u32; 2], n_threads, shared_kib: u32, expected| {
                let bounds = Bounds {
                    max_threads,
                    min_blocks,
                };
                let found = Card::of(capability).resident_blocks(bounds, n_threads, shared_kib << 10);
                assert_eq!(
                    found, expected,
                    "{capability:?} {bounds:?} {n_threads} {shared_kib}"
                );
            };
        // 128 registers allow four blocks of 128 threads.
        check((9, 0), [128, 4], 128, 0, 4);
        check((9, 0), [128, 4], 32, 0, 16);
        check((9, 0), [256, 1], 256, 0, 1);
        // A GeForce has 100 KiB, an H200 228.
        check((8, 9), [128, 4], 128, 48, 2);
        check((9, 0), [128, 4], 128, 48, 4);
        check((12, 0), [32, 24], 32, 0, 24);
        check((8, 6), [32, 24], 32, 0, 16);
    }
}

//! [`Traffic`]: the sources of the bytes that a launch requests, extrapolated from the thread blocks that were run.
//!
//! It looks at the whole grid. For each allocation it estimates how many bytes the thread blocks request in total and how many
//! different ones these are, and so how often one comes from device memory. Invariant: bytes that an earlier launch left in L2, or
//! that this launch wrote before, come from L2.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{DeviceProfile, residency::Residency};
use crate::{DeviceMemory, DevicePtr, Kernel, counters::SECTOR_BYTES, op::Op, trace::BlockTrace};

/// Ratio of requested to different bytes from which on an allocation counts as read several times.
const IS_REUSED: f64 = 1.05;

/// The source of a sector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// Share of its requests beyond L1 that device memory serves.
    pub(super) miss_share: f64,
    /// Whether other thread blocks read it too.
    pub(super) is_common: bool,
}

/// The bytes that a launch moves.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// For each trace, a source for each of its sectors.
    pub(super) sources: Vec<Vec<Source>>,
    /// For each trace, bytes that it requests from L2, and of these from or to device memory.
    pub(super) bytes: Vec<[f64; 2]>,
    /// Bytes of the whole grid: requested from L2, and from or to device memory.
    pub(super) total: [f64; 2],
    /// Share of the written bytes that leaves L2 for device memory while the launch runs: as much as it touches beyond the size of L2.
    pub(super) write_back: f64,
    /// By address: different bytes of each allocation.
    pub(super) touched: BTreeMap<DevicePtr, u64>,
}

/// The use that the simulated thread blocks make of one allocation.
#[derive(Default)]
struct Use {
    /// Sectors, each counted once for each thread block.
    n_asked: u64,
    /// Sectors that only one thread block requests.
    n_private: u64,
    /// Different sectors that several thread blocks request.
    n_common: u64,
    /// Whether the first and the second thread block of the grid share a sector.
    is_shared_by_neighbours: bool,
}

impl Traffic {
    /// Computes it from the traces of some thread blocks of a grid of `n_blocks`.
    pub(super) fn of(
        kernel: &Kernel,
        memory: &DeviceMemory,
        traces: &[BlockTrace],
        n_blocks: u64,
        device: &DeviceProfile,
        residency: &Residency,
    ) -> Self {
        let scale = n_blocks as f64 / traces.len().max(1) as f64;
        let is_whole = traces.len() as u64 == n_blocks;
        let mut written: HashSet<u64> = HashSet::new();
        // Thread blocks that have a sector, counted as far as two, and whether the first two of the grid have it.
        let mut readers: HashMap<u64, (u8, u8)> = HashMap::new();
        let mut of_traces: Vec<Vec<u64>> = Vec::with_capacity(traces.len());
        for trace in traces {
            for executed in trace.warps.iter().flatten() {
                let op = &kernel.code[executed.pc as usize].op;
                if matches!(op, Op::Store { .. } | Op::Atomic { .. }) {
                    written.extend(trace.sectors_of(executed));
                }
            }
            let mut sectors = trace.sectors.clone();
            sectors.sort_unstable();
            sectors.dedup();
            for &sector in &sectors {
                let entry = readers.entry(sector).or_default();
                entry.0 = entry.0.saturating_add(1).min(2);
                entry.1 |= match trace.index {
                    0 => 1,
                    1 => 2,
                    _ => 0,
                };
            }
            of_traces.push(sectors);
        }
        let mut hint = 0;
        let mut allocation_of = |sector: u64| {
            hint = memory.find(sector * SECTOR_BYTES, hint).unwrap_or(0);
            hint
        };
        let mut uses: HashMap<usize, Use> = HashMap::new();
        for (&sector, &(n, neighbours)) in &readers {
            let entry = uses.entry(allocation_of(sector)).or_default();
            if n == 1 {
                entry.n_private += 1;
            } else {
                entry.n_common += 1;
            }
            entry.is_shared_by_neighbours |= neighbours == 3;
        }
        for &sector in of_traces.iter().flatten() {
            uses.entry(allocation_of(sector)).or_default().n_asked += 1;
        }
        let mut traffic = Self::default();
        // Different bytes, and requested bytes, of each allocation.
        let mut sizes: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for (&index, found) in &uses {
            let sector = SECTOR_BYTES as f64;
            let asked = found.n_asked as f64 * scale * sector;
            let scaled = if is_whole { 1.0 } else { scale };
            let different = (found.n_private as f64 * scaled + found.n_common as f64) * sector;
            let allocation = memory.allocation(index);
            let different = different.min(allocation.bytes.next_multiple_of(SECTOR_BYTES) as f64);
            sizes.insert(index, (different, asked));
            traffic
                .touched
                .insert(DevicePtr(allocation.address), different as u64);
        }
        let all: f64 = sizes.values().map(|&(different, _)| different).sum();
        traffic.write_back = (1.0 - device.l2_bytes as f64 / all.max(1.0)).max(0.0);
        let shares: HashMap<usize, f64> = sizes
            .iter()
            .map(|(&index, &(different, asked))| {
                let address = DevicePtr(memory.allocation(index).address);
                let is_there = different as u64 <= residency.kept(address, device);
                let passes_through = all > device.l2_bytes as f64
                    && !uses[&index].is_shared_by_neighbours
                    && asked > IS_REUSED * different;
                let share = if is_there {
                    0.0
                } else if passes_through {
                    1.0
                } else {
                    (different / asked).min(1.0)
                };
                (index, share)
            })
            .collect();
        for (trace, different) in traces.iter().zip(&of_traces) {
            let source = |sector: u64, index: usize| Source {
                miss_share: if written.contains(&sector) {
                    0.0
                } else {
                    shares[&index]
                },
                is_common: readers[&sector].0 > 1,
            };
            let sources = (trace.sectors.iter())
                .map(|&sector| source(sector, allocation_of(sector)))
                .collect();
            traffic.sources.push(sources);
            let mut bytes = [0.0; 2];
            for &sector in different {
                let from_dram = if written.contains(&sector) {
                    traffic.write_back
                } else {
                    source(sector, allocation_of(sector)).miss_share
                };
                bytes[0] += SECTOR_BYTES as f64;
                bytes[1] += from_dram * SECTOR_BYTES as f64;
            }
            traffic.total[0] += bytes[0] * scale;
            traffic.total[1] += bytes[1] * scale;
            traffic.bytes.push(bytes);
        }
        traffic
    }
}

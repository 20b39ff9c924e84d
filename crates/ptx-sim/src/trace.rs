//! [`BlockTrace`]: the executed instructions of a thread block, for the timing model.
//!
//! Invariant: an instruction's entry has every sector of global memory that it touched and every pass over the banks of
//! shared memory that it took.

use std::collections::BTreeMap;

use crate::counters::SECTOR_BYTES;

/// One executed warp instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Executed {
    pub(crate) pc: u32,
    /// Active lanes; 0 if the guard is false for all.
    pub(crate) n_lanes: u8,
    /// Passes over the banks of shared memory.
    pub(crate) n_passes: u16,
    /// Its sectors in [`BlockTrace::sectors`].
    pub(crate) first_sector: u32,
    pub(crate) n_sectors: u16,
    /// One more than its place in [`BlockTrace::marks`]; 0 for none.
    pub(crate) mark: u32,
}

/// Instructions that one thread block executed.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockTrace {
    /// Index of the thread block in the grid.
    pub(crate) index: u64,
    /// By warp.
    pub(crate) warps: Vec<Vec<Executed>>,
    /// Numbers of sectors: addresses divided by the bytes of a sector.
    pub(crate) sectors: Vec<u64>,
    /// A barrier in shared memory and a phase of it, for each instruction that waits for the phase or ends it.
    pub(crate) marks: Vec<(u32, u32)>,
    /// Instructions that a phase waits for: arrivals and copies.
    pub(crate) contributions: BTreeMap<(u32, u32), u32>,
    /// The warp that executes.
    current: usize,
}

impl BlockTrace {
    pub(crate) fn new(index: u64, n_warps: usize) -> Self {
        Self {
            index,
            warps: vec![Vec::new(); n_warps],
            ..Self::default()
        }
    }

    /// Returns the number of executed warp instructions.
    pub(crate) fn n_executed(&self) -> usize {
        self.warps.iter().map(Vec::len).sum()
    }

    /// Returns the sectors of an instruction.
    pub(crate) fn sectors_of(&self, executed: &Executed) -> &[u64] {
        let first = executed.first_sector as usize;
        &self.sectors[first..first + usize::from(executed.n_sectors)]
    }

    /// Begins an instruction of a warp.
    #[inline]
    pub(crate) fn begin(&mut self, warp: u32, pc: u32, mask: u32) {
        self.current = warp as usize;
        self.warps[self.current].push(Executed {
            pc,
            n_lanes: mask.count_ones() as u8,
            n_passes: 0,
            first_sector: self.sectors.len() as u32,
            n_sectors: 0,
            mark: 0,
        });
    }

    /// Returns the number of kept instructions of a warp.
    pub(crate) fn n_kept(&self, warp: u32) -> usize {
        self.warps[warp as usize].len()
    }

    /// Drops the executed instructions of a warp after the first so many, except the `kept` part.
    pub(crate) fn forget(&mut self, warp: u32, n_kept: usize, kept: impl Fn(u32) -> bool) {
        let executed = &mut self.warps[warp as usize];
        if executed
            .get(n_kept..)
            .is_some_and(|rest| !rest.iter().any(|one| kept(one.pc)))
        {
            executed.truncate(n_kept);
        }
    }

    /// Notes that the latest instruction concerns a phase of a barrier, and whether the phase waits for it.
    pub(crate) fn mark(&mut self, barrier: u32, phase: u32, contributes: bool) {
        let Some(executed) = self.warps[self.current].last_mut() else {
            return;
        };
        // Lanes that arrive together count as one arrival.
        if executed.mark != 0 {
            return;
        }
        self.marks.push((barrier, phase));
        executed.mark = self.marks.len() as u32;
        if contributes {
            *self.contributions.entry((barrier, phase)).or_default() += 1;
        }
    }

    /// Notes passes over the banks by the latest instruction.
    pub(crate) fn add_passes(&mut self, n: u64) {
        if let Some(executed) = self.warps[self.current].last_mut() {
            executed.n_passes = executed.n_passes.saturating_add(n as u16);
        }
    }

    /// Notes accesses of this many bytes each, by the latest instruction.
    pub(crate) fn add_accesses(&mut self, addresses: impl Iterator<Item = u64>, bytes: u64) {
        let Some(executed) = self.warps[self.current].last_mut() else {
            return;
        };
        let first = executed.first_sector as usize;
        for address in addresses {
            for sector in address / SECTOR_BYTES..=(address + bytes - 1) / SECTOR_BYTES {
                self.sectors.push(sector);
            }
        }
        self.sectors[first..].sort_unstable();
        // Sectors before `first` belong to other instructions.
        let mut kept = first;
        for at in first..self.sectors.len() {
            if kept == first || self.sectors[kept - 1] != self.sectors[at] {
                self.sectors[kept] = self.sectors[at];
                kept += 1;
            }
        }
        self.sectors.truncate(kept);
        executed.n_sectors = (kept - first) as u16;
    }
}

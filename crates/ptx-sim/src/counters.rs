//! [`Counters`]: exact counts of a launch: instructions, memory sectors, bank conflicts.
//!
//! They are figures of the PTX, which the driver compiles further: loads, stores, shared memory and matrix operations
//! correspond one to one, address arithmetic roughly. Invariant: the same launch on the same memory gives the same
//! counters, whatever the number of host threads.

use std::collections::BTreeMap;

use crate::{DevicePtr, op::Class};

/// Bytes of a memory sector, the unit in which global memory is transferred.
pub const SECTOR_BYTES: u64 = 32;

/// Traffic of global loads or stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Warp instructions with at least one active lane.
    pub requests: u64,
    /// Sectors that they touch, with each instruction counted separately.
    pub sectors: u64,
    /// Sectors that the same bytes would need if each instruction's were packed.
    pub necessary_sectors: u64,
}

impl Traffic {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.sectors += other.sectors;
        self.necessary_sectors += other.necessary_sectors;
    }
}

/// Traffic of one allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferTraffic {
    /// Sectors requested by loads.
    pub loaded_sectors: u64,
    /// Different sectors among them.
    pub unique_loaded_sectors: u64,
    /// Sectors requested by stores.
    pub stored_sectors: u64,
    /// Different sectors among them.
    pub unique_stored_sectors: u64,
}

/// Shared memory use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedTraffic {
    /// Warp instructions.
    pub requests: u64,
    /// Passes over the 32 banks that they need.
    pub wavefronts: u64,
    /// Passes that the same accesses would need without bank conflicts.
    pub ideal_wavefronts: u64,
}

/// Counts of one launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Thread blocks run.
    pub thread_blocks: u64,
    /// Warp instructions executed, by class.
    pub instructions: BTreeMap<Class, u64>,
    /// Global loads, asynchronous copies among them.
    pub loads: Traffic,
    /// Global stores.
    pub stores: Traffic,
    /// Shared memory.
    pub shared: SharedTraffic,
    /// Lanes that did an atomic operation on global memory.
    pub global_atomics: u64,
    /// Lanes that did an atomic operation on shared memory.
    pub shared_atomics: u64,
    /// Traffic of each allocation by its address. Empty unless the launch tracks global memory.
    pub buffers: BTreeMap<DevicePtr, BufferTraffic>,
}

impl Counters {
    /// Returns the warp instructions of all classes.
    pub fn warp_instructions(&self) -> u64 {
        self.instructions.values().sum()
    }

    /// Returns the warp instructions of one class.
    pub fn of(&self, class: Class) -> u64 {
        self.instructions.get(&class).copied().unwrap_or(0)
    }

    /// Returns the shared memory passes beyond those without conflicts.
    pub fn bank_conflicts(&self) -> u64 {
        self.shared.wavefronts - self.shared.ideal_wavefronts
    }

    /// Adds another launch's counters.
    pub fn add(&mut self, other: &Self) {
        self.thread_blocks += other.thread_blocks;
        for (&class, &count) in &other.instructions {
            *self.instructions.entry(class).or_default() += count;
        }
        self.loads.add(&other.loads);
        self.stores.add(&other.stores);
        self.shared.requests += other.shared.requests;
        self.shared.wavefronts += other.shared.wavefronts;
        self.shared.ideal_wavefronts += other.shared.ideal_wavefronts;
        self.global_atomics += other.global_atomics;
        self.shared_atomics += other.shared_atomics;
        for (&address, traffic) in &other.buffers {
            let sum = self.buffers.entry(address).or_default();
            sum.loaded_sectors += traffic.loaded_sectors;
            sum.unique_loaded_sectors += traffic.unique_loaded_sectors;
            sum.stored_sectors += traffic.stored_sectors;
            sum.unique_stored_sectors += traffic.unique_stored_sectors;
        }
    }
}

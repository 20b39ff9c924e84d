//! [`Work`] and [`Outcome`]: the work of one multiprocessor in a launch, and its result.

use super::{DeviceProfile, traffic::Source};
use crate::{Kernel, trace::BlockTrace};

/// The work of a multiprocessor in a launch.
pub(super) struct Work<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) device: &'a DeviceProfile,
    pub(super) traces: &'a [BlockTrace],
    /// The sources of each trace's sectors, one for each sector.
    pub(super) sources: &'a [Vec<Source>],
    /// The thread blocks in the order in which they start, each as the index of its trace.
    pub(super) blocks: Vec<usize>,
    /// Thread blocks at a time.
    pub(super) n_resident: usize,
    /// Sectors that the L1 holds.
    pub(super) l1_sectors: usize,
    /// This multiprocessor's share.
    pub(super) l2_bytes_per_clock: f64,
    /// This multiprocessor's share.
    pub(super) dram_bytes_per_clock: f64,
    /// Time at which threads that wait for the previous launch continue.
    pub(super) release: f64,
    /// Thread blocks that begin before that.
    pub(super) n_early: usize,
    /// Bytes of code that are in no cache of instructions.
    pub(super) cold_code_bytes: u32,
    /// Share of the written bytes that L2 has no room for.
    pub(super) write_back: f64,
    /// Share of the bandwidth of device memory that the early thread blocks have until then.
    pub(super) early_share: f64,
}

/// The result of playing a [`Work`] in time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// From the moment when threads that wait for the launch before continue.
    pub(super) clocks: f64,
    /// Time at which the last thread block let later launches begin, from the same moment.
    pub(super) lets_next: f64,
    /// Slots used, of all schedulers.
    pub(super) slots: f64,
    /// Clocks that the busiest arithmetic unit was used, of all schedulers.
    pub(super) unit_clocks: f64,
    /// Clocks of the unit of loads, stores and shuffles.
    pub(super) memory_clocks: f64,
    pub(super) l2_bytes: f64,
    pub(super) dram_bytes: f64,
    /// Bytes of loads that were on their way, on average and at most.
    pub(super) in_flight: f64,
    pub(super) in_flight_peak: f64,
}

//! [`Counts`]: counts of a simulated GPU's operations, for tests.
//!
//! Invariant: they only grow, even if the GPU is closed and opened again.

use std::collections::BTreeMap;

use tokenmill_ptx_sim::Counters;

/// Counts a GPU's operations since its creation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) kernels: BTreeMap<String, (u64, Counters)>,
    /// Launches that could begin before earlier ones were done.
    pub(crate) n_early: u64,
    /// Launches that wanted another carveout than the previous launch.
    pub(crate) n_divisions: u64,
    /// Completed sums over the ranks of a communicator.
    pub(crate) n_sums: u64,
    pub(crate) n_captured: u64,
    pub(crate) n_replayed: u64,
    /// Number of times that the context was opened.
    pub(crate) n_opened: u64,
    /// Events recorded.
    pub(crate) n_recorded: u64,
    pub(crate) n_uploads: u64,
    pub(crate) n_downloads: u64,
    pub(crate) n_downloaded_bytes: u64,
}

//! [`Counts`] counts what a simulated GPU has done.
//!
//! Separate because work adds to it and tests read it. Invariant: it only grows, even if the GPU is closed and opened again.

use std::collections::BTreeMap;

use tokenmill_ptx_sim::Counters;

/// Counts a GPU's operations since its creation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) kernels: BTreeMap<String, (u64, Counters)>,
    /// Launches that could begin before those before them were done.
    pub(crate) n_early: u64,
    /// Launches that wanted another carveout than the launch before.
    pub(crate) n_divisions: u64,
    /// Sums over the ranks of a communicator that ended.
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

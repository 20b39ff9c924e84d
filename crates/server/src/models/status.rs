//! [`Status`]: a model's state, for lists and metrics.
//!
//! Its readers do not know the registry. Invariant: it is a copy, which later events do not change.

use std::time::Duration;

use crate::ApiError;

/// The activity of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Nothing; it takes no memory.
    Unloaded,
    /// It is being loaded.
    Loading,
    /// It answers requests.
    Loaded,
    /// It is being unloaded.
    Unloading,
}

/// Counts of a model's loads and unloads since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Loads that succeeded.
    pub(crate) loads: u64,
    /// Loads that failed.
    pub(crate) failures: u64,
    /// Times that it was unloaded.
    pub(crate) unloads: u64,
}

/// A model as others see it.
#[derive(Clone, Debug)]
pub(crate) struct Status<A> {
    pub(crate) doing: Doing,
    /// The model, while it is loaded.
    pub(crate) app: Option<A>,
    /// The memory that it takes, 0 while it takes none.
    pub(crate) n_bytes: u64,
    /// Why it could not be loaded the last time.
    pub(crate) failure: Option<ApiError>,
    /// Requests that wait for it to be loaded.
    pub(crate) n_waiting: usize,
    /// Requests that run on it.
    pub(crate) n_running: usize,
    /// How long it stays without being used; `None` for ever.
    pub(crate) expires_in: Option<Duration>,
    pub(crate) counts: Counts,
}

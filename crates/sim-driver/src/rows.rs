//! [`Rows`]: a queued copy in two dimensions.
//!
//! Invariant: a row is inside its pitch.

use crate::host_memory::HostMemory;

/// The place of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// In memory of the caller; the range covers all rows and gaps.
    Host(HostMemory),
    /// At an address of the device.
    Device(u64),
}

/// A copy of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) from: Place,
    pub(crate) to: Place,
    pub(crate) pitches: [usize; 2],
    pub(crate) row_bytes: usize,
    pub(crate) height: usize,
}

impl Rows {
    /// Returns the memory of the caller that the copy uses.
    pub(crate) fn on_host(&self) -> impl Iterator<Item = &HostMemory> {
        [&self.from, &self.to]
            .into_iter()
            .filter_map(|place| match place {
                Place::Host(memory) => Some(memory),
                Place::Device(_) => None,
            })
    }
}

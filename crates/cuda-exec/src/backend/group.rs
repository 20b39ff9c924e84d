//! What a GPU does as a rank of a group: it adds up with the others what each has computed a part of.
//!
//! Separate because a GPU that has a network for itself does none of it. The values go to pinned memory, where the ranks meet, and their
//! sums come back: no GPU need reach the memory of another, and the bits do not depend on which links there are. Invariant: the host is
//! at a sum when all launches before it have run.

use tokenmill_backend::{BackendError, Collective};

use super::{CudaBackend, CudaBuffer};

impl CudaBackend {
    /// Makes this a rank of a group, which adds up with this end of it. Its steps are launched as they are, not captured.
    #[must_use]
    pub fn with_collective(mut self, collective: Box<dyn Collective>) -> Self {
        self.collective = Some(collective);
        self
    }

    /// Replaces values by their sum over the ranks, where there are several.
    pub(super) fn add_up(&mut self, n_values: usize, rows: &mut CudaBuffer) -> Result<(), BackendError> {
        let Some(collective) = &mut self.collective else {
            return Ok(());
        };
        if self.sums.as_ref().is_none_or(|sums| sums.len() < n_values) {
            self.sums = Some(self.device.alloc_pinned(n_values.next_power_of_two())?);
        }
        let sums = self.sums.as_mut().expect("made above");
        let range = 0..n_values;
        sums.download(
            crate::Stream::Compute,
            rows.read().range(range.clone())?,
            range.clone(),
        )?;
        collective.all_reduce(&mut sums.host()?[range.clone()])?;
        sums.upload(crate::Stream::Compute, range.clone(), &rows.write().range(range)?)?;
        Ok(())
    }
}

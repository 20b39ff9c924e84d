//! What a GPU does as a rank of a group: it adds up with the others what each has computed a part of.
//!
//! Separate because a GPU that has a network for itself does none of it. The values go to pinned memory, where the ranks meet, and their
//! sums come back: no GPU need reach the memory of another, and the bits do not depend on which links there are. Invariants: the host is
//! at a sum when all launches before it have run; the memory is made at load, for the longest step, since a driver may stop the GPU to make it,
//! and may have none left.

use tokenmill_backend::{BackendError, Collective, ExecutorLimits};

use super::{CudaBackend, CudaBuffer};

impl CudaBackend {
    /// Makes this a rank of a group, which adds up with this end of it. Its steps are launched as they are, not captured.
    #[must_use]
    pub fn with_collective(mut self, collective: Box<dyn Collective>) -> Self {
        self.collective = Some(collective);
        self
    }

    /// Makes the memory for the sums of steps of up to so many tokens.
    pub(super) fn make_sums(&mut self, limits: &ExecutorLimits) -> Result<(), BackendError> {
        if self.collective.is_some() {
            let n_values = limits.max_batch_tokens * limits.n_embd;
            self.sums = Some(self.device.alloc_pinned(n_values)?);
        }
        Ok(())
    }

    /// Replaces values by their sum over the ranks, where there are several.
    pub(super) fn add_up(&mut self, n_values: usize, rows: &mut CudaBuffer) -> Result<(), BackendError> {
        let Some(collective) = &mut self.collective else {
            return Ok(());
        };
        let sums = (self.sums.as_mut()).expect("memory for sums is made at load, where there is a group");
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

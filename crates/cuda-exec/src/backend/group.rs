//! A GPU's part as a rank of a group: it sums partial results with the other ranks, and gathers columns.
//!
//! There are two ways. Through the host's memory, values go to pinned memory, where the ranks meet, and their sums come back. No GPU
//! has to reach another's memory, but the host reaches a sum only when all earlier launches have run. Through NCCL, the sum is
//! queued on the stream of the step like a launch, and can be captured. Invariants: all ranks of a group use the same way. Memory is
//! allocated at load, for the longest step, since a driver may stop the GPU to allocate it, and may have none left.

use tokenmill_backend::{BackendError, Collective, ColumnGather, ExecutorLimits};

use super::{CudaBackend, CudaBuffer};

/// Connects a rank to its group.
pub(super) enum GroupEnd {
    /// Ranks meet in the host's memory. `sums` holds the values and exists from the load on.
    Host {
        collective: Box<dyn Collective>,
        sums: Option<crate::Pinned<f32>>,
    },
    /// The GPUs exchange values themselves.
    Nccl(crate::NcclRank),
}

impl CudaBackend {
    /// Makes this a rank of a group that sums in the host's memory through this end. Its steps are launched without capture.
    #[must_use]
    pub fn with_collective(mut self, collective: Box<dyn Collective>) -> Self {
        self.group_end = Some(GroupEnd::Host {
            collective,
            sums: None,
        });
        self
    }

    /// Makes this a rank of a group whose GPUs sum through NCCL. Its decode steps are captured, as those of a single GPU are.
    ///
    /// # Panics
    /// If the rank belongs to another device.
    #[must_use]
    pub fn with_nccl(mut self, rank: crate::NcclRank) -> Self {
        assert!(rank.is_of(&self.device), "a rank belongs to its device");
        self.group_end = Some(GroupEnd::Nccl(rank));
        self
    }

    /// Returns whether the host has to wait within a step, which a captured step cannot do.
    pub(super) fn waits_within_steps(&self) -> bool {
        matches!(self.group_end, Some(GroupEnd::Host { .. }))
    }

    /// Allocates the memory for the sums of the longest step.
    pub(super) fn make_sums(&mut self, limits: &ExecutorLimits) -> Result<(), BackendError> {
        if let Some(GroupEnd::Host { sums, .. }) = &mut self.group_end {
            let n_values = limits.max_batch_tokens * limits.n_embd;
            *sums = Some(self.device.alloc_pinned(n_values)?);
        }
        Ok(())
    }

    /// Replaces values by their sum over the ranks, if there are several.
    pub(super) fn add_up(&mut self, n_values: usize, rows: &mut CudaBuffer) -> Result<(), BackendError> {
        let range = 0..n_values;
        match &mut self.group_end {
            None => {}
            Some(GroupEnd::Nccl(rank)) => rank.all_reduce(&rows.write().range(range)?)?,
            Some(GroupEnd::Host { collective, sums }) => {
                let sums = sums.as_mut().expect("memory for sums is made at load");
                sums.download(
                    crate::Stream::Compute,
                    rows.read().range(range.clone())?,
                    range.clone(),
                )?;
                collective.all_reduce(&mut sums.host()?[range.clone()])?;
                sums.upload(crate::Stream::Compute, range.clone(), &rows.write().range(range)?)?;
            }
        }
        Ok(())
    }
}

impl CudaBackend {
    /// Gathers the columns of all ranks on each.
    pub(super) fn gather_columns(
        &mut self,
        gather: ColumnGather<'_, CudaBuffer>,
    ) -> Result<(), BackendError> {
        let Some(GroupEnd::Nccl(rank)) = &mut self.group_end else {
            return Err(BackendError::Unsupported {
                feature: "an output head that is divided among devices which add up in the host's memory"
                    .to_owned(),
                device: "CUDA",
            });
        };
        let ColumnGather {
            n_rows,
            width,
            part_width,
            part,
            parts,
            rows,
        } = gather;
        let own = part.read().range(0..n_rows * part_width)?;
        rank.all_gather(own, &parts.write())?;
        Ok(self
            .ops
            .join_parts(parts.read(), n_rows, [part_width, width], rows.write())?)
    }
}

impl Drop for CudaBackend {
    /// Ends waits for other ranks before the memory that they use is freed, since freeing waits for the device.
    fn drop(&mut self) {
        if let Some(GroupEnd::Nccl(rank)) = &self.group_end {
            rank.end();
        }
    }
}

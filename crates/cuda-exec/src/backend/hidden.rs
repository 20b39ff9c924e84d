//! [`HiddenInputs`]: the upload of hidden states for a step of an MTP layer.
//!
//! Invariant: the states stay at one address on the device for the life of the backend, so that a captured step finds them again.

use tokenmill_backend::{BackendError, ExecutorLimits};

use super::{CudaBackend, CudaBuffer, prepared};

/// Hidden states of a step's tokens, and the pinned memory that they go through.
pub(super) struct HiddenInputs {
    rows: crate::Buffer<f32>,
    staging: [crate::Pinned<f32>; 2],
    n_steps: usize,
    width: usize,
}

impl HiddenInputs {
    pub(super) fn new(device: &crate::Device, limits: &ExecutorLimits) -> Result<Self, crate::CudaExecError> {
        let len = Self::len(limits);
        Ok(Self {
            rows: device.alloc("step inputs", len)?,
            staging: [device.alloc_pinned(len)?, device.alloc_pinned(len)?],
            n_steps: 0,
            width: limits.n_embd,
        })
    }

    pub(super) fn device_bytes(limits: &ExecutorLimits) -> usize {
        crate::buffer_bytes::<f32>(Self::len(limits))
    }

    fn len(limits: &ExecutorLimits) -> usize {
        limits.max_batch_tokens.saturating_mul(limits.n_embd)
    }

    /// Queues the copy of a step's states, with zeros for the tokens that pad it to `n_tokens`.
    pub(super) fn begin(&mut self, states: &[f32], n_tokens: usize) -> Result<(), BackendError> {
        let len = n_tokens * self.width;
        let staging = &mut self.staging[self.n_steps % 2];
        self.n_steps += 1;
        let host = &mut staging.host()?[..len];
        let (known, padding) = host.split_at_mut(states.len());
        known.copy_from_slice(states);
        padding.fill(0.0);
        if len > 0 {
            let target = self.rows.view_mut().range(0..len)?;
            staging.upload(crate::Stream::Compute, 0..len, &target)?;
        }
        Ok(())
    }
}

impl CudaBackend {
    /// Copies the states of a step's first tokens to a buffer.
    pub(super) fn copy_hidden(
        &mut self,
        n_tokens: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let hidden = prepared(&mut self.workspace).hidden.as_ref();
        let hidden = hidden.expect("a network that reads hidden states was prepared for");
        let rows = hidden.rows.view().range(0..n_tokens * hidden.width)?;
        let target = output.write().range(0..rows.len())?;
        Ok(self.device.copy(crate::Stream::Compute, rows, &target)?)
    }
}

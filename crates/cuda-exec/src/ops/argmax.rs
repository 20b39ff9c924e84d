//! The likeliest token of each row. Kernels: `argmax.cu`.

use super::Ops;
use crate::{Args, Buffer, Device, LaunchShape, View, ViewMut, error::Result};

/// The smallest number of logits that a thread block reads.
const PART_LOGITS: usize = 2048;

/// Marks a row without a token.
pub const NO_TOKEN: u32 = u32::MAX;

/// Memory for the best token of each part of a row.
#[derive(Debug)]
pub struct ArgmaxScratch {
    best: Buffer<u64>,
}

fn n_parts(n_vocab: usize) -> usize {
    n_vocab.div_ceil(PART_LOGITS).clamp(1, 64)
}

impl ArgmaxScratch {
    /// Allocates for up to `max_rows` rows.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`](crate::CudaExecError::OutOfMemory).
    pub fn new(device: &Device, max_rows: usize, n_vocab: usize) -> Result<Self> {
        Ok(Self {
            best: device.alloc("sampling", max_rows * n_parts(n_vocab))?,
        })
    }

    /// Returns the device memory of such scratch.
    pub fn device_bytes(max_rows: usize, n_vocab: usize) -> usize {
        crate::driver::buffer_bytes::<u64>(max_rows * n_parts(n_vocab))
    }
}

impl Ops {
    /// Finds the token with the highest logit of each row, the lowest id among equals: `logits: [n_rows, n_vocab]`,
    /// `tokens: [n_rows]`. A row with a logit that is NaN or positive infinity, or with negative infinity alone, gets
    /// `u32::MAX`.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`](crate::CudaExecError::Bounds), or the driver's.
    pub fn argmax(
        &self,
        [n_rows, n_vocab]: [usize; 2],
        logits: View<'_, f32>,
        tokens: ViewMut<'_, u32>,
        scratch: &mut ArgmaxScratch,
    ) -> Result<()> {
        let n_parts = n_parts(n_vocab);
        let args = Args::new()
            .read(logits.range(0..n_rows * n_vocab)?)
            .count(n_vocab)
            .write(scratch.best.view_mut().range(0..n_rows * n_parts)?);
        self.device.launch(
            self.argmax_partial,
            LaunchShape::new([n_parts, n_rows, 1], 256),
            &args,
        )?;
        let args = Args::new()
            .read(scratch.best.view().range(0..n_rows * n_parts)?)
            .count(n_parts)
            .write(tokens.range(0..n_rows)?);
        self.device
            .launch(self.argmax_combine, LaunchShape::new([n_rows, 1, 1], 32), &args)
    }
}

//! [`Parts`]: memory for partial sums that several thread blocks compute.
//!
//! Products of several kinds share columns. Invariant: the counters are zero between launches.

use crate::{Buffer, Device, Stream, error::Result};

/// Multiprocessors of an H100. Every GPU divides products for this number, so that sums have the same bits on all.
pub(crate) const MULTIPROCESSORS: usize = 132;
/// Largest number of thread blocks of bands that are split: two for each multiprocessor. Blocks with more than 64 rows of
/// x count as several.
pub(crate) const MAX_SPLIT_BLOCKS: usize = 2 * MULTIPROCESSORS;

/// Memory for the partial sums of a band's thread blocks, and for counting the blocks that are done.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) sums: Buffer<f32>,
    /// Zero before and after each launch.
    pub(crate) counters: Buffer<u32>,
}

impl Parts {
    /// Sums for the largest split launch: 128 rows by 64 rows of x for each thread block.
    const N_SUMS: usize = MAX_SPLIT_BLOCKS * 128 * 64;

    /// Allocates it.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`](crate::CudaExecError::OutOfMemory), or the driver's.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let mut counters = device.alloc("products", MAX_SPLIT_BLOCKS)?;
        device.zero(Stream::Compute, &counters.view_mut())?;
        Ok(Self {
            sums: device.alloc("products", Self::N_SUMS)?,
            counters,
        })
    }

    /// Returns the device memory that it takes.
    pub(crate) fn device_bytes() -> usize {
        crate::buffer_bytes::<f32>(Self::N_SUMS) + crate::buffer_bytes::<u32>(MAX_SPLIT_BLOCKS)
    }
}

//! [`HalfBands`]: products of K-quants in f16, and the memory for rows of x converted to f16.
//!
//! Invariant: the sizes equal those in `kernels/half_bands.cuh` and `kernels/half_rows.cuh`.

use tokenmill_gguf::TensorType;

use crate::{Buffer, Device, error::Result};

/// The most shared memory of a thread block on compute capability 8.6 and 8.9, in bytes.
const MAX_SHARED_BYTES: usize = 99 << 10;

/// Describes how weights of a type are multiplied in f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfBands {
    /// Bytes of a group of 32 weights beyond its nibbles.
    high_bytes: usize,
    /// Whether a group has two scales and no minimum.
    has_halves: bool,
}

impl HalfBands {
    /// Rows of a matrix that a thread block takes.
    pub const ROWS: usize = 128;
    /// Rows of gate and of up that a thread block takes.
    pub const GATED_ROWS: usize = 64;
    /// Rows of x that a thread block takes.
    pub const COLUMNS: usize = 64;
    /// Smallest number of rows of x for which f16 replaces bands in int8: kernels for 32 rows and fewer compute less.
    pub const MIN_ROWS: usize = 33;

    /// Returns the bands of a type, if it has any.
    pub fn of(ty: TensorType) -> Option<Self> {
        let (high_bytes, has_halves) = match ty {
            TensorType::Q4_K => (0, false),
            TensorType::Q5_K => (4, false),
            TensorType::Q6_K => (8, true),
            _ => return None,
        };
        Some(Self {
            high_bytes,
            has_halves,
        })
    }

    /// Returns the dynamic shared memory of a kernel: as many steps of 128 columns ahead as fit, at most five.
    pub fn shared_bytes(self) -> usize {
        let stage = Self::ROWS * 4 * (16 + self.high_bytes) + Self::COLUMNS * 256;
        let tails = 2 * Self::ROWS * 32;
        let factors = 2 * Self::ROWS * if self.has_halves { 36 } else { 32 };
        let records = 3 * Self::COLUMNS * if self.has_halves { 4 } else { 36 };
        let fixed = tails + factors + records;
        fixed + ((MAX_SHARED_BYTES - fixed) / stage).min(5) * stage
    }
}

/// Rows of x as kernels in f16 take them, for one product at a time: for bands, or for matrix operations of warpgroups. Tiles for warpgroups use
/// the memory of the bands' numbers, with a power of two for each row.
#[derive(Debug)]
pub(crate) struct HalfRows {
    /// `[n_rows, n_in]` f16 numbers.
    pub(crate) halves: Buffer<u16>,
    /// `[n_rows, n_in / 32]`, two f16 numbers each.
    pub(crate) sums: Buffer<u32>,
    /// `[n_rows, n_in / 256]`.
    pub(crate) powers: Buffer<f32>,
}

impl HalfRows {
    /// Allocates rows of up to `width` values.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`](crate::CudaExecError::OutOfMemory).
    pub(crate) fn new(device: &Device, n_rows: usize, width: usize) -> Result<Self> {
        let len = Self::len(n_rows, width);
        Ok(Self {
            halves: device.alloc("products", len)?,
            sums: device.alloc("products", len / 32)?,
            powers: device.alloc("products", len / 256)?,
        })
    }

    /// Returns the device memory of such rows.
    pub(crate) fn device_bytes(n_rows: usize, width: usize) -> usize {
        let len = Self::len(n_rows, width);
        (crate::buffer_bytes::<u16>(len))
            .saturating_add(crate::buffer_bytes::<u32>(len / 32))
            .saturating_add(crate::buffer_bytes::<f32>(len / 256))
    }

    /// Returns the number of values of `n_rows` rows, padded to whole thread blocks.
    pub(crate) fn len(n_rows: usize, width: usize) -> usize {
        Self::padded(n_rows).saturating_mul(width.div_ceil(256).saturating_mul(256))
    }

    /// Returns the number of rows that are written for `n_rows`.
    pub(crate) fn padded(n_rows: usize) -> usize {
        n_rows
            .div_ceil(HalfBands::COLUMNS)
            .saturating_mul(HalfBands::COLUMNS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_thread_blocks_fit_a_multiprocessor() {
        let check = |ty, expected| {
            let bytes = HalfBands::of(ty).unwrap().shared_bytes();
            assert_eq!(bytes, expected, "{ty:?}");
            assert!(bytes <= MAX_SHARED_BYTES);
        };
        check(TensorType::Q4_K, 97_024);
        check(TensorType::Q5_K, 76_544);
        check(TensorType::Q6_K, 75_520);
        assert_eq!(HalfBands::of(TensorType::Q3_K), None);
    }

    #[test]
    fn rows_are_whole_thread_blocks() {
        assert_eq!(HalfRows::len(65, 500), 128 * 512);
        assert_eq!(HalfRows::len(usize::MAX, 4096), usize::MAX);
    }
}

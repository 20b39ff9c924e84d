//! [`ActivationFormat`]: what the other side of a dot product is quantized to.
//!
//! It is separate from [`Format`](crate::Format) because activations are quantized at every step, by SIMD code, and
//! never stored in a file. Invariant: every instruction set yields the same bits, those of ggml's `quantize_row_*_ref`.

use bytemuck::Pod;

use crate::formats::{BlockF32, BlockQ8_0, BlockQ8_1, BlockQ8K};
use crate::{CpuFeatures, QuantError, simd};

/// One block of an activation format.
pub trait ActivationBlock: Pod {
    /// The format this block is of.
    const FORMAT: ActivationFormat;
    /// Values in a block.
    const LEN: usize;

    /// Encodes [`LEN`](Self::LEN) values.
    fn encode(values: &[f32]) -> Self;
}

/// A format for activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ActivationFormat {
    /// Not quantized: 32-bit floats, little-endian.
    F32,
    /// [`BlockQ8_0`]: 32 signed bytes and a half-precision scale.
    Q8_0,
    /// [`BlockQ8_1`]: the same, with the sum of the block beside it, for weights that have a minimum.
    Q8_1,
    /// [`BlockQ8K`]: 256 signed bytes, a 32-bit scale, and the sum of each 16.
    Q8K,
}

impl ActivationFormat {
    /// The name, as ggml writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Q8_0 => "q8_0",
            Self::Q8_1 => "q8_1",
            Self::Q8K => "q8_K",
        }
    }

    /// Values in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 => <BlockF32 as ActivationBlock>::LEN,
            Self::Q8_0 => <BlockQ8_0 as ActivationBlock>::LEN,
            Self::Q8_1 => <BlockQ8_1 as ActivationBlock>::LEN,
            Self::Q8K => <BlockQ8K as ActivationBlock>::LEN,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<BlockF32>(),
            Self::Q8_0 => size_of::<BlockQ8_0>(),
            Self::Q8_1 => size_of::<BlockQ8_1>(),
            Self::Q8K => size_of::<BlockQ8K>(),
        }
    }

    /// Bytes of a row of `n_values`.
    ///
    /// # Errors
    /// [`QuantError::PartialBlock`] and [`QuantError::RowTooLong`].
    pub fn row_bytes(self, n_values: usize) -> Result<usize, QuantError> {
        row_bytes(self.name(), self.block_len(), self.block_bytes(), n_values)
    }

    /// Quantizes a row into `out`, which has exactly [`row_bytes`](Self::row_bytes).
    ///
    /// A value that is not finite makes its block's scale so, or its quants arbitrary; nothing panics.
    ///
    /// # Errors
    /// Those of [`row_bytes`](Self::row_bytes), and [`QuantError::ByteLength`].
    pub fn quantize_row(
        self,
        features: CpuFeatures,
        values: &[f32],
        out: &mut [u8],
    ) -> Result<(), QuantError> {
        check_bytes(
            self.name(),
            values.len(),
            self.row_bytes(values.len())?,
            out.len(),
        )?;
        match self {
            Self::F32 => simd::encode(features, values, bytemuck::cast_slice_mut::<u8, BlockF32>(out)),
            Self::Q8_0 => simd::encode(features, values, bytemuck::cast_slice_mut::<u8, BlockQ8_0>(out)),
            Self::Q8_1 => simd::encode(features, values, bytemuck::cast_slice_mut::<u8, BlockQ8_1>(out)),
            Self::Q8K => simd::encode(features, values, bytemuck::cast_slice_mut::<u8, BlockQ8K>(out)),
        }
        Ok(())
    }
}

/// Encodes whole blocks; `values` has exactly their values.
#[inline(always)]
pub(crate) fn encode_blocks<A: ActivationBlock>(values: &[f32], blocks: &mut [A]) {
    for (block, values) in blocks.iter_mut().zip(values.chunks_exact(A::LEN)) {
        *block = A::encode(values);
    }
}

/// Bytes of a row of whole blocks.
pub(crate) fn row_bytes(
    format: &'static str,
    block_len: usize,
    block_bytes: usize,
    n_values: usize,
) -> Result<usize, QuantError> {
    if !n_values.is_multiple_of(block_len) {
        return Err(QuantError::PartialBlock {
            format,
            block_len,
            found: n_values,
        });
    }
    (n_values / block_len)
        .checked_mul(block_bytes)
        .ok_or(QuantError::RowTooLong { found: n_values })
}

/// Compares a buffer with what a row takes.
pub(crate) fn check_bytes(
    format: &'static str,
    n_values: usize,
    expected: usize,
    found: usize,
) -> Result<(), QuantError> {
    if expected == found {
        Ok(())
    } else {
        Err(QuantError::ByteLength {
            format,
            n_values,
            expected,
            found,
        })
    }
}

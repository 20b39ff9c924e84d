//! [`Block`]: what a format's file provides; and the loops from bytes to blocks that all formats share.

use bytemuck::Pod;
use tokenmill_gguf::TensorType;

/// One block of a weight format, as it lies in a file: no alignment, any bit pattern is valid.
///
/// Values are decoded in the order of the row. A scale that is infinite or NaN yields values that are; nothing panics.
pub trait Block: Pod {
    /// The type this block is of.
    const TYPE: TensorType;
    /// Weights in a block.
    const LEN: usize;

    /// Decodes the block into `out`, which has [`LEN`](Self::LEN) values.
    fn dequantize(&self, out: &mut [f32]);

    /// Encodes [`LEN`](Self::LEN) values, as ggml's `quantize_row_*_ref` does without an importance matrix.
    fn quantize(values: &[f32]) -> Self;
}

/// Decodes whole blocks; `out` has exactly their values.
#[inline(always)]
pub(crate) fn dequantize_blocks<B: Block>(blocks: &[B], out: &mut [f32]) {
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(B::LEN)) {
        block.dequantize(out);
    }
}

/// Encodes whole blocks; `values` has exactly their values.
pub(crate) fn quantize_blocks<B: Block>(values: &[f32], blocks: &mut [B]) {
    for (block, values) in blocks.iter_mut().zip(values.chunks_exact(B::LEN)) {
        *block = B::quantize(values);
    }
}

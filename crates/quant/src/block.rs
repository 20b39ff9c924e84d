//! [`Block`] and [`QuantBlock`]: what a format's file provides; and the loops from bytes to blocks that all formats share.

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

    /// Whether values can be encoded. The formats of two bits and fewer that point into grids need an importance matrix, which no
    /// encoder here takes.
    const HAS_ENCODER: bool = true;

    /// Encodes [`LEN`](Self::LEN) values, as ggml's `quantize_row_*_ref` does without an importance matrix.
    ///
    /// # Panics
    /// When there is no encoder.
    fn quantize(_values: &[f32]) -> Self {
        unreachable!("a format without an encoder is not asked to encode")
    }
}

/// A block of quants, taken apart: what executors lay out for their kernels, so that only a format's own file knows the
/// places of its bits.
pub trait QuantBlock: Block {
    /// Bits of a quant.
    const QUANT_BITS: u32;
    /// What quants stand for, where they are indices into a table.
    const CODEBOOK: Option<[i8; 16]> = None;
    /// Bytes of [`BlockParts::group_scales`] that each 32 weights have: 0, 1 or 2.
    const GROUP_SCALE_BYTES: usize = 0;
    /// Bytes of [`BlockParts::header`].
    const HEADER_BYTES: usize;
    /// A byte for each quant: `[u8; LEN]`.
    type Quants: AsRef<[u8]>;

    /// Takes the block apart.
    fn parts(&self) -> BlockParts<Self::Quants>;

    /// Sets the scale of the whole block and, where it has one, its minimum, as exactly as the block can store them.
    fn set_scales(&mut self, scale: f32, min: f32);
}

/// The parts of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockParts<Q> {
    /// The quants in row order, without a sign unless they are whole bytes: [`QuantBlock::QUANT_BITS`] bits each.
    pub quants: Q,
    /// Scales of the groups of weights, as the format's file says; [`QuantBlock::GROUP_SCALE_BYTES`] for each 32.
    pub group_scales: [u8; 16],
    /// What the block has once: scale, minimum and scales that are packed, in this order;
    /// [`QuantBlock::HEADER_BYTES`] of them.
    pub header: [u8; 16],
}

impl<Q> BlockParts<Q> {
    /// Parts without group scales.
    #[inline(always)]
    pub(crate) fn new(quants: Q, header: &[u8]) -> Self {
        Self::with_group_scales(quants, [0; 16], header)
    }

    /// Parts with group scales.
    #[inline(always)]
    pub(crate) fn with_group_scales(quants: Q, group_scales: [u8; 16], header: &[u8]) -> Self {
        let mut parts = Self {
            quants,
            group_scales,
            header: [0; 16],
        };
        parts.header[..header.len()].copy_from_slice(header);
        parts
    }
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

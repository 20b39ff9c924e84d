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

    /// Whether values can be encoded without an importance matrix. The formats of two bits and fewer that point into grids need
    /// one.
    const HAS_ENCODER: bool = true;

    /// Encodes [`LEN`](Self::LEN) values, as ggml's `quantize_row_*_ref` does without an importance matrix.
    ///
    /// # Panics
    /// When there is no encoder.
    fn quantize(_values: &[f32]) -> Self {
        unreachable!("a format without an encoder is not asked to encode")
    }

    /// Encodes [`LEN`](Self::LEN) values, as ggml does with an importance matrix. Formats whose encoder has no use for one encode as
    /// without.
    fn quantize_weighted(values: &[f32], _importance: &Importance<'_>) -> Self {
        Self::quantize(values)
    }
}

/// What an importance matrix says of the values of a block.
#[derive(Clone, Copy, Debug)]
pub struct Importance<'a> {
    /// Of each value of the block, the mean square of the numbers that it is multiplied with.
    pub values: &'a [f32],
    /// Mean of the squares of the values of the whole row.
    pub row_mean_square: f32,
}

impl Importance<'_> {
    /// The weights of errors in a block of `N` values, of formats whose blocks are groups.
    pub(crate) fn row_weights<const N: usize>(&self, values: &[f32; N]) -> [f32; N] {
        self.weights(0, values, self.row_mean_square)
    }

    /// The weights of errors in a group of `N` values, the blocks' groups being numbered: the importance of a value times the
    /// root of its square plus `mean_square`.
    pub(crate) fn weights<const N: usize>(
        &self,
        group: usize,
        values: &[f32; N],
        mean_square: f32,
    ) -> [f32; N] {
        let importance = &self.values[group * N..][..N];
        std::array::from_fn(|i| importance[i] * (mean_square + values[i] * values[i]).sqrt())
    }
}

/// Sum of the squares of values, in their order.
pub(crate) fn sum_of_squares(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, x| sum + x * x)
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

/// Encodes the blocks of one row; `values` has exactly their values, and `importance` as many.
pub(crate) fn quantize_weighted_blocks<B: Block>(values: &[f32], importance: &[f32], blocks: &mut [B]) {
    let row_mean_square = sum_of_squares(values) / values.len() as f32;
    let importance = importance.chunks_exact(B::LEN);
    for ((block, values), importance) in blocks.iter_mut().zip(values.chunks_exact(B::LEN)).zip(importance) {
        let importance = Importance {
            values: importance,
            row_mean_square,
        };
        *block = B::quantize_weighted(values, &importance);
    }
}

/// Encodes whole blocks; `values` has exactly their values.
pub(crate) fn quantize_blocks<B: Block>(values: &[f32], blocks: &mut [B]) {
    for (block, values) in blocks.iter_mut().zip(values.chunks_exact(B::LEN)) {
        *block = B::quantize(values);
    }
}

//! [`Block`] and [`QuantBlock`]: the items that a format's file provides; and the loops from bytes to blocks
//! that all formats share.

use bytemuck::Pod;
use tokenmill_gguf::TensorType;

/// One block of a weight format, as stored in a file: no alignment, any bit pattern is valid.
///
/// Values are decoded in row order. An infinite or NaN scale yields such values; nothing panics.
pub trait Block: Pod {
    /// The tensor type of this block.
    const TYPE: TensorType;
    /// Number of weights in a block.
    const LEN: usize;

    /// Decodes the block into `out`, which has [`LEN`](Self::LEN) values.
    fn dequantize(&self, out: &mut [f32]);

    /// Whether values can be encoded without an importance matrix. Grid formats of two bits or fewer need
    /// one.
    const HAS_ENCODER: bool = true;

    /// Encodes [`LEN`](Self::LEN) values, as ggml's `quantize_row_*_ref` does without an importance matrix.
    ///
    /// # Panics
    /// If there is no encoder.
    fn quantize(_values: &[f32]) -> Self {
        unreachable!("a format without an encoder is not asked to encode")
    }

    /// Encodes [`LEN`](Self::LEN) values, as ggml does with an importance matrix. Formats whose encoder
    /// ignores one encode as without it.
    fn quantize_weighted(values: &[f32], _importance: &Importance<'_>) -> Self {
        Self::quantize(values)
    }
}

/// The importance matrix's data for the values of a block.
#[derive(Clone, Copy, Debug)]
pub struct Importance<'a> {
    /// For each value of the block, the mean square of the inputs multiplied by it.
    pub values: &'a [f32],
    /// Mean of the squares of the values of the whole row.
    pub row_mean_square: f32,
}

impl Importance<'_> {
    /// Returns the error weights of a block of `N` values, for formats whose blocks are groups.
    pub(crate) fn row_weights<const N: usize>(&self, values: &[f32; N]) -> [f32; N] {
        self.weights(0, values, self.row_mean_square)
    }

    /// Returns the error weights of a group of `N` values, the block's groups being numbered: a value's
    /// importance times the root of its square plus `mean_square`.
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

/// Returns the sum of the squares of values, added in order.
pub(crate) fn sum_of_squares(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, x| sum + x * x)
}

/// A block of quants, split into parts. Executors arrange the parts for their kernels, so that only a
/// format's own file knows the positions of its bits.
pub trait QuantBlock: Block {
    /// Number of bits per quant.
    const QUANT_BITS: u32;
    /// The values of quants that are indices into a table.
    const CODEBOOK: Option<[i8; 16]> = None;
    /// Number of bytes in [`BlockParts::group_scales`] per 32 weights: 0, 1 or 2.
    const GROUP_SCALE_BYTES: usize = 0;
    /// Number of bytes in [`BlockParts::header`].
    const HEADER_BYTES: usize;
    /// One byte per quant: `[u8; LEN]`.
    type Quants: AsRef<[u8]>;

    /// Splits the block into parts.
    fn parts(&self) -> BlockParts<Self::Quants>;

    /// Sets the scale of the whole block and, if it has one, its minimum, as precisely as the block can store
    /// them.
    fn set_scales(&mut self, scale: f32, min: f32);
}

/// The parts of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockParts<Q> {
    /// The quants in row order, unsigned unless they are whole bytes: [`QuantBlock::QUANT_BITS`] bits each.
    pub quants: Q,
    /// Scales of the groups of weights, in the format's own form; [`QuantBlock::GROUP_SCALE_BYTES`] per 32
    /// weights.
    pub group_scales: [u8; 16],
    /// Data that the block has once: scale, minimum and packed scales, in this order;
    /// [`QuantBlock::HEADER_BYTES`] bytes.
    pub header: [u8; 16],
}

impl<Q> BlockParts<Q> {
    /// Creates parts without group scales.
    #[inline(always)]
    pub(crate) fn new(quants: Q, header: &[u8]) -> Self {
        Self::with_group_scales(quants, &[], header)
    }

    /// Creates parts with group scales.
    #[inline(always)]
    pub(crate) fn with_group_scales(quants: Q, group_scales: &[u8], header: &[u8]) -> Self {
        let mut parts = Self {
            quants,
            group_scales: [0; 16],
            header: [0; 16],
        };
        parts.group_scales[..group_scales.len()].copy_from_slice(group_scales);
        parts.header[..header.len()].copy_from_slice(header);
        parts
    }
}

/// Decodes whole blocks; the length of `out` matches exactly.
#[inline(always)]
pub(crate) fn dequantize_blocks<B: Block>(blocks: &[B], out: &mut [f32]) {
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(B::LEN)) {
        block.dequantize(out);
    }
}

/// Encodes the blocks of one row; the lengths of `values` and `importance` match exactly.
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

/// Encodes whole blocks; the length of `values` matches exactly.
pub(crate) fn quantize_blocks<B: Block>(values: &[f32], blocks: &mut [B]) {
    for (block, values) in blocks.iter_mut().zip(values.chunks_exact(B::LEN)) {
        *block = B::quantize(values);
    }
}

//! [`ActivationBlock`]: activations as bytes, with the sums that weights with a bias or a minimum need.
//!
//! Quantized once per input and read by every matrix of a group. Blocks of one span of columns lie together, row after
//! row, so that a kernel that takes several rows reads one stream. Invariant: a block is a function of its 256 values
//! alone, the same bits for every instruction set.

use super::{Kernel, Simd, dispatch};
use crate::{Host, pool::Columns};

/// Columns of a span: what one block covers.
pub(crate) const SPAN_COLS: usize = 256;
/// Columns that share a scale, or a sum, at the finest.
pub(crate) const SUB_COLS: usize = 32;
/// Groups of [`SUB_COLS`] in a whole span.
pub(crate) const SPAN_SUBS: usize = SPAN_COLS / SUB_COLS;

/// How many columns share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleSpan {
    /// One scale for 32 columns, as weights of formats with blocks of 32 have.
    Sub,
    /// One scale for 256 columns, as weights of K-formats have.
    Span,
}

/// 256 activations of one row. Columns beyond the row's end are 0.
///
/// `side` holds one 32-bit word for each item:
///
/// | scales for | 0..8 | 8..16 | 16..24 | 24..28 | 28 |
/// |---|---|---|---|---|---|
/// | [`ScaleSpan::Sub`] | scale, f32 | -sum of 32, i32 | scale * sum, f32 | | |
/// | [`ScaleSpan::Span`] | -sum of 16, i32 | (up to 16) | sums of 16, two i16 | sums of 32, two i16 | scale, f32 |
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct ActivationBlock {
    pub(crate) quants: [i8; SPAN_COLS],
    pub(crate) side: [u32; 32],
}

impl Default for ActivationBlock {
    fn default() -> Self {
        Self {
            quants: [0; SPAN_COLS],
            side: [0; 32],
        }
    }
}

impl ActivationBlock {
    /// Word of the first scale, by [`ScaleSpan`].
    pub(crate) const SUB_SCALE: usize = 0;
    pub(crate) const SPAN_SCALE: usize = 28;
    /// Words of the first negated sum.
    pub(crate) const NEG_SUM_32: usize = 8;
    pub(crate) const NEG_SUM_16: usize = 0;
    /// Word of the first product of scale and sum.
    pub(crate) const SCALED_SUM_32: usize = 16;
    /// Words of the first pair of sums.
    pub(crate) const SUM_PAIRS_16: usize = 16;
    pub(crate) const SUM_PAIRS_32: usize = 24;
}

/// The number of spans, the last of which may be partial, that cover `n_cols`.
pub(crate) fn n_spans(n_cols: usize) -> usize {
    n_cols.div_ceil(SPAN_COLS)
}

/// Quantizes `x`, `[n_tokens, n_cols]`, into `blocks`, `[n_spans, n_tokens]`.
pub(crate) fn quantize(
    host: &Host,
    scale_span: ScaleSpan,
    x: &[f32],
    n_cols: usize,
    blocks: &mut [ActivationBlock],
) {
    let n_tokens = x.len() / n_cols;
    debug_assert_eq!(blocks.len(), n_spans(n_cols) * n_tokens);
    let blocks = Columns::new(blocks, n_tokens, TOKENS_PER_CHUNK);
    host.pool().for_each_part(blocks, |chunk_idx, mut blocks| {
        let rows = x
            .chunks_exact(n_cols)
            .skip(chunk_idx * TOKENS_PER_CHUNK)
            .take(TOKENS_PER_CHUNK);
        for (i, row) in rows.enumerate() {
            for (span_idx, values) in row.chunks(SPAN_COLS).enumerate() {
                let block = &mut blocks.row(span_idx)[i];
                // SAFETY: the kernel holds references only.
                unsafe {
                    dispatch(
                        host.features(),
                        Quantize {
                            scale_span,
                            values,
                            block,
                        },
                    );
                }
            }
        }
    });
}

/// Tokens per chunk, so that a decode step's few stay on the calling thread.
const TOKENS_PER_CHUNK: usize = 4;

struct Quantize<'a> {
    scale_span: ScaleSpan,
    values: &'a [f32],
    block: &'a mut ActivationBlock,
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut values = [0.0; SPAN_COLS];
        values[..self.values.len()].copy_from_slice(self.values);
        let quants = &mut self.block.quants;
        let side = &mut self.block.side;
        match self.scale_span {
            ScaleSpan::Sub => {
                for sub in 0..SPAN_SUBS {
                    let cols = sub * SUB_COLS..(sub + 1) * SUB_COLS;
                    // SAFETY: the features of `S` are there.
                    let scale =
                        unsafe { quantize_run::<S>(&values[cols.clone()], &mut quants[cols.clone()]) };
                    let sum: i32 = quants[cols].iter().map(|&q| i32::from(q)).sum();
                    side[ActivationBlock::SUB_SCALE + sub] = scale.to_bits();
                    side[ActivationBlock::NEG_SUM_32 + sub] = -sum as u32;
                    side[ActivationBlock::SCALED_SUM_32 + sub] = (scale * sum as f32).to_bits();
                }
            }
            ScaleSpan::Span => {
                // SAFETY: the features of `S` are there.
                let scale = unsafe { quantize_run::<S>(&values, quants) };
                let mut sums = [0i32; 16];
                for (sum, quants) in sums.iter_mut().zip(quants.as_chunks::<16>().0) {
                    *sum = quants.iter().map(|&q| i32::from(q)).sum();
                }
                for (i, sum) in sums.iter().enumerate() {
                    side[ActivationBlock::NEG_SUM_16 + i] = -sum as u32;
                }
                let pair = |low: i32, high: i32| u32::from(low as u16) | u32::from(high as u16) << 16;
                for i in 0..8 {
                    side[ActivationBlock::SUM_PAIRS_16 + i] = pair(sums[2 * i], sums[2 * i + 1]);
                }
                for i in 0..4 {
                    let s = &sums[4 * i..4 * i + 4];
                    side[ActivationBlock::SUM_PAIRS_32 + i] = pair(s[0] + s[1], s[2] + s[3]);
                }
                side[ActivationBlock::SPAN_SCALE] = scale.to_bits();
            }
        }
    }
}

/// Quantizes values that share a scale, a multiple of 32 of them, and returns the scale: the largest absolute value
/// becomes 127. A value that is not finite makes the scale NaN, so that no product hides it.
#[inline(always)]
unsafe fn quantize_run<S: Simd>(values: &[f32], quants: &mut [i8]) -> f32 {
    // SAFETY: the features of `S` are there; `values` and the arrays hold a whole number of vectors.
    unsafe {
        let magnitude = S::splat(0x7fff_ffff);
        let zero = S::splat_f32(0.0);
        let (mut max, mut check) = (zero, zero);
        for at in (0..values.len()).step_by(S::LANES) {
            let x = S::load_f32(values[at..].as_ptr());
            max = S::max(S::from_bits(S::and(S::bits(x), magnitude)), max);
            check = S::fma(x, zero, check);
        }
        let (mut maxima, mut checks) = ([0.0f32; 16], [0.0f32; 16]);
        S::store_f32(maxima.as_mut_ptr(), max);
        S::store_f32(checks.as_mut_ptr(), check);
        // Zero times a value is zero unless the value is not finite.
        let largest = maxima.iter().copied().fold(0.0, f32::max) + checks.iter().sum::<f32>();
        let scale = largest / 127.0;
        let inverse = 127.0 / largest;
        let inverse = S::splat_f32(if inverse.is_finite() { inverse } else { 0.0 });
        let mut wide = [0i32; SPAN_COLS];
        for at in (0..values.len()).step_by(S::LANES) {
            let q = S::to_i32(S::mul(S::load_f32(values[at..].as_ptr()), inverse));
            S::store(wide[at..].as_mut_ptr().cast(), q);
        }
        for (quant, wide) in quants.iter_mut().zip(&wide) {
            *quant = *wide as i8;
        }
        scale
    }
}

//! The steps of a product of quantized weights and activations; both forms of the product share them.
//!
//! [`TileRun`] has the arguments of a product. Invariant, the order of an output element's reduction:
//! integers are summed exactly over each run of columns with a scale; then runs in order of columns, each
//! with one fused multiply-add; spans in order.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::{
    activation_block::{ActivationBlock, SPAN_COLS, SPAN_SUBS, SUB_COLS, ScaleSpan},
    simd::{Simd, TILE_ROWS},
    tiles::{Class, QuantTile, Span},
};

/// The bias of every format with whole bytes; products may subtract it from the bytes themselves.
pub(crate) const WIDE_BIAS_BITS: u32 = 7;

/// The number of outputs of one row of activations: two tiles.
pub const PAIR_ROWS: usize = 2 * TILE_ROWS;

/// The distance in bytes at which weights are prefetched if they are multiplied at once. A core alone needs
/// this much in flight to read at its full speed; with less, reads wait for memory.
pub(crate) const PREFETCH_BYTES: usize = 8192;

/// Neighbouring tiles (one or two in quantized formats), and rows of activations to multiply them with.
///
/// Every user of the pointers relies on this contract. `tiles` points to `n_tiles` whole tiles of
/// `tile_bytes` of `n_cols` columns. `blocks` (of quantized tiles) points to the blocks of the first row in
/// the first span, with `block_stride` blocks from a span to the next; `x` (of float tiles) points to the
/// first row of `n_cols` values. `sums` points to `[n_rows, sum_stride(n_tiles)]` values; the first
/// `n_tiles * TILE_ROWS` of each row are written.
#[derive(Clone, Copy)]
pub(crate) struct TileRun {
    pub(crate) tiles: *const u8,
    pub(crate) tile_bytes: usize,
    pub(crate) n_tiles: usize,
    pub(crate) n_cols: usize,
    pub(crate) blocks: *const ActivationBlock,
    pub(crate) block_stride: usize,
    pub(crate) x: *const f32,
    pub(crate) n_rows: usize,
    pub(crate) sums: *mut f32,
}

/// Returns the number of values from one row of sums to the next: those of two tiles, or of all tiles if
/// there are more.
#[inline(always)]
pub(crate) const fn sum_stride(n_tiles: usize) -> usize {
    if n_tiles > 2 {
        n_tiles * TILE_ROWS
    } else {
        PAIR_ROWS
    }
}

/// Returns the number of groups of 32 columns in a span of a row of `n_cols` columns.
#[inline(always)]
pub(crate) const fn n_subs(n_cols: usize, span_idx: usize) -> usize {
    let left = n_cols - span_idx * SPAN_COLS;
    if left < SPAN_COLS {
        left / SUB_COLS
    } else {
        SPAN_SUBS
    }
}

/// Prefetches as many bytes as 32 columns have, `distance` after them; after the end of the tiles it has no
/// effect.
#[inline(always)]
pub(crate) fn prefetch_sub<S: Simd, T: QuantTile>(span: Span, sub: usize, distance: usize) {
    let sub_bytes = T::span_bytes(SPAN_SUBS) / SPAN_SUBS;
    let first = span.ptr.wrapping_add(distance + sub * sub_bytes);
    // The fence keeps the compiler from prefetching a whole span at once, which is more than a core can have
    // in flight.
    compiler_fence(Ordering::SeqCst);
    for line in 0..sub_bytes.div_ceil(64) {
        S::prefetch(first.wrapping_add(64 * line));
    }
}

#[inline(always)]
pub(crate) unsafe fn dot<S: Simd, C: Class>(acc: S::I, w: S::I, x: S::I) -> S::I {
    // SAFETY: the processor has the features; weights that are not wide are at most 127 and activations never -128.
    unsafe {
        if C::IS_WIDE && S::CENTERS_WIDE {
            S::dot_centered(acc, w, x)
        } else if C::IS_WIDE {
            S::dot_u8::<true>(acc, w, x)
        } else {
            S::dot_u8::<false>(acc, w, x)
        }
    }
}

/// Returns the start of a run's integer sum: minus the bias times the sum of its activations.
#[inline(always)]
pub(crate) unsafe fn start<S: Simd, C: Class>(
    block: *const ActivationBlock,
    run: usize,
    bias_bits: Option<u32>,
) -> S::I {
    // SAFETY: the caller vouches for the block; its side words reach beyond every run.
    unsafe {
        let Some(bias_bits) = bias_bits else {
            return S::splat(0);
        };
        if C::IS_WIDE && S::CENTERS_WIDE {
            return S::splat(0);
        }
        let first = match C::ACTIVATION_SCALES {
            ScaleSpan::Sub => ActivationBlock::NEG_SUM_32,
            ScaleSpan::Span => ActivationBlock::NEG_SUM_16,
        };
        S::shl32(side::<S>(block, first + run), bias_bits)
    }
}

/// Adds the sum of a run of columns with a scale.
#[inline(always)]
pub(crate) unsafe fn add_run<S: Simd, C: Class>(
    part: S::F,
    sum: S::I,
    scale: S::F,
    block: *const ActivationBlock,
    run: usize,
) -> S::F {
    // SAFETY: the processor has the features, and the caller vouches for the block.
    unsafe {
        let sum = S::to_f32(sum);
        if C::ACTIVATION_SCALES == ScaleSpan::Span {
            return S::fma(sum, scale, part);
        }
        let x_scale = S::from_bits(side::<S>(block, ActivationBlock::SUB_SCALE + run));
        S::fma(sum, S::mul(scale, x_scale), part)
    }
}

/// Adds the offset of 32 columns.
#[inline(always)]
pub(crate) unsafe fn add_offset<S: Simd>(
    part: S::F,
    offset: S::F,
    block: *const ActivationBlock,
    sub: usize,
) -> S::F {
    // SAFETY: the processor has the features, and the caller vouches for the block.
    unsafe {
        let scaled_sum = S::from_bits(side::<S>(block, ActivationBlock::SCALED_SUM_32 + sub));
        S::fma(offset, scaled_sum, part)
    }
}

/// Adds the minima of two runs times the sums of their activations.
#[inline(always)]
pub(crate) unsafe fn add_min_pair<S: Simd, C: Class>(
    sum: S::I,
    mins: S::I,
    block: *const ActivationBlock,
    pair: usize,
) -> S::I {
    // SAFETY: the processor has the features, and the caller vouches for the block.
    unsafe {
        let first = if C::HAS_SHORT_SUBS {
            ActivationBlock::SUM_PAIRS_16
        } else {
            ActivationBlock::SUM_PAIRS_32
        };
        S::dot_i16(sum, mins, side::<S>(block, first + pair))
    }
}

/// Adds a span whose activations share a scale.
#[inline(always)]
pub(crate) unsafe fn end_span<S: Simd>(total: S::F, part: S::F, block: *const ActivationBlock) -> S::F {
    // SAFETY: the processor has the features, and the caller vouches for the block.
    unsafe {
        let x_scale = S::from_bits(side::<S>(block, ActivationBlock::SPAN_SCALE));
        S::fma(part, x_scale, total)
    }
}

#[inline(always)]
unsafe fn side<S: Simd>(block: *const ActivationBlock, word: usize) -> S::I {
    // SAFETY: the caller vouches for the block, and `word` is one of its words.
    unsafe { S::load_splat((&raw const (*block).side).cast::<u8>().add(4 * word)) }
}

//! Products of quantized tiles with rows of activations: the kernels of decode and prefill.
//!
//! Two forms of one reduction. With few rows ([`Direct`]) weights are unpacked in registers and used at once. With many
//! ([`panel`](super::panel)) a span is unpacked once and used for all rows of a block.
//!
//! Invariant, the order of an output element's reduction, which both forms keep: integers are summed exactly over each run
//! of columns with a scale; then runs in order of columns, each with one fused multiply-add; spans in order.

use std::sync::atomic::{Ordering, compiler_fence};

use super::{
    Kernel, Simd, TILE_ROWS,
    activations::{ActivationBlock, SPAN_COLS, SPAN_SUBS, SUB_COLS, ScaleSpan, n_spans},
    panel,
    tiles::{Class, QuantTile, Scales, Span},
};

/// Outputs of one row of activations: two tiles.
pub(crate) const PAIR_ROWS: usize = 2 * TILE_ROWS;

/// How far ahead of their use weights are asked for where they are multiplied at once. A core alone needs this much under
/// way to read at its rate; with less, reading waits for memory.
pub(super) const PREFETCH_BYTES: usize = 8192;

/// One or two neighbouring tiles, and rows of activations to multiply them with.
///
/// Every user of the pointers relies on this: `tiles` points to `n_tiles` whole tiles of `tile_bytes` of `n_cols` columns;
/// `blocks` (of quantized tiles) to the blocks of the first row in the first span, with `block_stride` blocks from a span
/// to the next; `x` (of float tiles) to the first row of `n_cols` values; and `sums` to `[n_rows, PAIR_ROWS]` values, of
/// which the first `n_tiles * TILE_ROWS` of each row are written.
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

/// Products of tiles of one format.
///
/// It borrows the run: nine words that were just written, copied by the vector on their way through a call, cost a stalled
/// load for every pair of tiles.
pub(crate) struct QuantProducts<'a, T> {
    run: &'a TileRun,
    tile: std::marker::PhantomData<T>,
}

impl<'a, T: QuantTile> QuantProducts<'a, T> {
    /// # Safety
    /// What [`TileRun`] says holds, and its tiles are packed in format `T`.
    pub(crate) unsafe fn new(run: &'a TileRun) -> Self {
        Self {
            run,
            tile: std::marker::PhantomData,
        }
    }
}

impl<T: QuantTile> Kernel for QuantProducts<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = *self.run;
        // SAFETY: the kernel's own contract; all pointers stay inside what it describes.
        unsafe {
            let max_direct_rows = if T::IS_DEAR { 4 } else { 3 * S::MAX_DIRECT_ROWS };
            if run.n_rows > max_direct_rows {
                return panel::products::<S, T>(&run);
            }
            for tile_idx in 0..run.n_tiles {
                let mut row_idx = 0;
                while row_idx < run.n_rows {
                    let part = TileRun {
                        tiles: run.tiles.add(tile_idx * run.tile_bytes),
                        blocks: run.blocks.add(row_idx),
                        sums: run.sums.add(row_idx * PAIR_ROWS + tile_idx * TILE_ROWS),
                        ..run
                    };
                    row_idx += match (run.n_rows - row_idx).min(S::MAX_DIRECT_ROWS) {
                        8.. => Direct::<T, 8>::call::<S>(&part),
                        6.. => Direct::<T, 6>::call::<S>(&part),
                        4.. => Direct::<T, 4>::call::<S>(&part),
                        2.. => Direct::<T, 2>::call::<S>(&part),
                        _ => Direct::<T, 1>::call::<S>(&part),
                    };
                }
            }
        }
    }
}

/// Groups of 32 columns in a span of `n_cols` columns.
#[inline(always)]
pub(super) const fn n_subs(n_cols: usize, span_idx: usize) -> usize {
    let left = n_cols - span_idx * SPAN_COLS;
    if left < SPAN_COLS {
        left / SUB_COLS
    } else {
        SPAN_SUBS
    }
}

/// One tile and `ROWS` rows, unpacked in registers.
struct Direct<'a, T, const ROWS: usize> {
    run: &'a TileRun,
    tile: std::marker::PhantomData<T>,
}

impl<'a, T: QuantTile, const ROWS: usize> Direct<'a, T, ROWS> {
    /// Runs the kernel as a function of its own, and returns `ROWS`.
    #[inline(always)]
    unsafe fn call<S: Simd>(run: &'a TileRun) -> usize {
        // SAFETY: the caller's contract is the kernel's.
        unsafe {
            S::call(Self {
                run,
                tile: std::marker::PhantomData,
            });
        }
        ROWS
    }
}

impl<T: QuantTile, const ROWS: usize> Kernel for Direct<'_, T, ROWS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = *self.run;
        let span_bytes = T::span_bytes(SPAN_SUBS);
        // SAFETY: the kernel's own contract.
        unsafe {
            for half in 0..S::HALVES {
                let mut totals = [S::splat_f32(0.0); ROWS];
                for span_idx in 0..n_spans(run.n_cols) {
                    let n_subs = n_subs(run.n_cols, span_idx);
                    let ptr = run.tiles.add(span_idx * span_bytes);
                    let blocks = run.blocks.add(span_idx * run.block_stride);
                    direct_span::<S, T, ROWS>(Span { ptr, n_subs }, half, blocks, &mut totals);
                }
                for row in 0..ROWS {
                    S::store_f32(run.sums.add(row * PAIR_ROWS + half * S::LANES), totals[row]);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn direct_span<S: Simd, T: QuantTile, const ROWS: usize>(
    span: Span,
    half: usize,
    blocks: *const ActivationBlock,
    totals: &mut [S::F; ROWS],
) {
    // SAFETY: the caller's contract is that of `TileRun` for one span.
    unsafe {
        let mut scales = Scales::<S>::unset();
        T::scales(span, half, &mut scales);
        let mut parts = if T::Class::ACTIVATION_SCALES == ScaleSpan::Sub {
            *totals
        } else {
            [S::splat_f32(0.0); ROWS]
        };
        if span.n_subs == SPAN_SUBS {
            // Spelled out, so that shifts and places of bits are constants.
            direct_sub::<S, T, ROWS>(span, 0, half, &scales, blocks, &mut parts);
            direct_sub::<S, T, ROWS>(span, 1, half, &scales, blocks, &mut parts);
            direct_sub::<S, T, ROWS>(span, 2, half, &scales, blocks, &mut parts);
            direct_sub::<S, T, ROWS>(span, 3, half, &scales, blocks, &mut parts);
            direct_sub::<S, T, ROWS>(span, 4, half, &scales, blocks, &mut parts);
            direct_sub::<S, T, ROWS>(span, 5, half, &scales, blocks, &mut parts);
            direct_sub::<S, T, ROWS>(span, 6, half, &scales, blocks, &mut parts);
            direct_sub::<S, T, ROWS>(span, 7, half, &scales, blocks, &mut parts);
        } else {
            for sub in 0..span.n_subs {
                direct_sub::<S, T, ROWS>(span, sub, half, &scales, blocks, &mut parts);
            }
        }
        if T::Class::ACTIVATION_SCALES == ScaleSpan::Sub {
            *totals = parts;
            return;
        }
        for row in 0..ROWS {
            let block = blocks.add(row);
            let mut part = parts[row];
            if T::Class::HAS_MINS {
                let mut sum = S::splat(0);
                for pair in 0..T::Class::MIN_PAIRS {
                    sum = add_min_pair::<S, T::Class>(sum, scales.min_pair(pair), block, pair);
                }
                part = S::fma(S::to_f32(sum), scales.neg_min_scale(), part);
            }
            totals[row] = end_span::<S>(totals[row], part, block);
        }
    }
}

/// Asks for as many bytes as 32 columns have, `distance` behind them; where the tiles end, nothing comes of it.
#[inline(always)]
pub(super) fn prefetch_sub<S: Simd, T: QuantTile>(span: Span, sub: usize, distance: usize) {
    let sub_bytes = T::span_bytes(SPAN_SUBS) / SPAN_SUBS;
    let first = span.ptr.wrapping_add(distance + sub * sub_bytes);
    // Keeps the compiler from asking for a whole span at once, which is more than a core can have under way.
    compiler_fence(Ordering::SeqCst);
    for line in 0..sub_bytes.div_ceil(64) {
        S::prefetch(first.wrapping_add(64 * line));
    }
}

/// Adds 32 columns.
#[inline(always)]
unsafe fn direct_sub<S: Simd, T: QuantTile, const ROWS: usize>(
    span: Span,
    sub: usize,
    half: usize,
    scales: &Scales<S>,
    blocks: *const ActivationBlock,
    parts: &mut [S::F; ROWS],
) {
    // SAFETY: the caller's contract is that of `TileRun` for one span, and `sub` is in it.
    unsafe {
        if half == 0 {
            prefetch_sub::<S, T>(span, sub, PREFETCH_BYTES);
        }
        let w = T::weights::<S>(span, sub, half);
        let run_len = 8 / T::Class::SUB_RUNS;
        for row in 0..ROWS {
            let block = blocks.add(row);
            let x = (&raw const (*block).quants).cast::<u8>().add(sub * SUB_COLS);
            for i in 0..T::Class::SUB_RUNS {
                let run = sub * T::Class::SUB_RUNS + i;
                let mut even = start::<S, T::Class>(block, run, T::BIAS_BITS);
                let mut odd = S::splat(0);
                // Two chains, since with one row little else hides the latency.
                for pair in i * run_len / 2..(i + 1) * run_len / 2 {
                    let g = 2 * pair;
                    even = dot::<S, T::Class>(even, w[g], S::load_splat(x.add(4 * g)));
                    odd = dot::<S, T::Class>(odd, w[g + 1], S::load_splat(x.add(4 * g + 4)));
                }
                let sum = S::add_i32(even, odd);
                parts[row] = add_run::<S, T::Class>(parts[row], sum, scales.scale(run), block, run);
                if T::Class::HAS_OFFSETS {
                    parts[row] = add_offset::<S>(parts[row], scales.offset(sub), block, sub);
                }
            }
        }
        if ROWS == 1 {
            // Or LLVM reads the columns of a whole span first, many times what registers hold. `Q6_K` alone would do
            // without; what it loses lies beyond what memory gives.
            S::settle(parts[0]);
        }
    }
}

#[inline(always)]
pub(super) unsafe fn dot<S: Simd, C: Class>(acc: S::I, w: S::I, x: S::I) -> S::I {
    // SAFETY: the features are there; weights that are not wide are at most 128 and activations never -128.
    unsafe {
        if C::IS_WIDE {
            S::dot_u8::<true>(acc, w, x)
        } else {
            S::dot_u8::<false>(acc, w, x)
        }
    }
}

/// What a run's integer sum starts from: minus the bias times the sum of its activations.
#[inline(always)]
pub(super) unsafe fn start<S: Simd, C: Class>(
    block: *const ActivationBlock,
    run: usize,
    bias_bits: Option<u32>,
) -> S::I {
    // SAFETY: the caller vouches for the block; its side words reach beyond every run.
    unsafe {
        let Some(bias_bits) = bias_bits else {
            return S::splat(0);
        };
        let first = match C::ACTIVATION_SCALES {
            ScaleSpan::Sub => ActivationBlock::NEG_SUM_32,
            ScaleSpan::Span => ActivationBlock::NEG_SUM_16,
        };
        S::shl32(side::<S>(block, first + run), bias_bits)
    }
}

/// Adds the sum of a run of columns with a scale.
#[inline(always)]
pub(super) unsafe fn add_run<S: Simd, C: Class>(
    part: S::F,
    sum: S::I,
    scale: S::F,
    block: *const ActivationBlock,
    run: usize,
) -> S::F {
    // SAFETY: the features are there, and the caller vouches for the block.
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
pub(super) unsafe fn add_offset<S: Simd>(
    part: S::F,
    offset: S::F,
    block: *const ActivationBlock,
    sub: usize,
) -> S::F {
    // SAFETY: the features are there, and the caller vouches for the block.
    unsafe {
        let scaled_sum = S::from_bits(side::<S>(block, ActivationBlock::SCALED_SUM_32 + sub));
        S::fma(offset, scaled_sum, part)
    }
}

/// Adds the minima of two runs times the sums of their activations.
#[inline(always)]
pub(super) unsafe fn add_min_pair<S: Simd, C: Class>(
    sum: S::I,
    mins: S::I,
    block: *const ActivationBlock,
    pair: usize,
) -> S::I {
    // SAFETY: the features are there, and the caller vouches for the block.
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
pub(super) unsafe fn end_span<S: Simd>(total: S::F, part: S::F, block: *const ActivationBlock) -> S::F {
    // SAFETY: the features are there, and the caller vouches for the block.
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

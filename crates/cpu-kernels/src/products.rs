//! Products of quantized tiles with rows of activations: the kernels of decode and prefill.
//!
//! There are two forms of one reduction. With few rows ([`Direct`]) weights are unpacked in registers and
//! used at once. With many ([`panel`](super::panel)) a span is unpacked once and used for all rows of a
//! block.
//!
//! Invariant: both reduce an output element in the order of [`reduction`](super::reduction).

use tokenmill_quant::Block as _;

use crate::{
    activation_block::{ActivationBlock, SPAN_COLS, SPAN_SUBS, SUB_COLS, ScaleSpan, n_spans},
    panel,
    reduction::{
        PAIR_ROWS, PREFETCH_BYTES, TileRun, WIDE_BIAS_BITS, add_min_pair, add_offset, add_run, dot, end_span,
        n_subs, prefetch_sub, start,
    },
    simd::{Kernel, Simd, TILE_ROWS},
    tiles::{Class, QuantTile, Scales, Span},
};

/// The products of tiles of one format.
///
/// It borrows the run. The loads of a copy by vectors, right after the run's nine words were written one by
/// one, would stall for every pair of tiles.
pub(crate) struct QuantProducts<'a, T> {
    run: &'a TileRun,
    tile: std::marker::PhantomData<T>,
}

impl<'a, T: QuantTile> QuantProducts<'a, T> {
    /// # Safety
    /// The contract of [`TileRun`] holds, and its tiles are packed in format `T`.
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
        // `start` relies on it: a product of whole bytes needs no correction where activations are centred.
        const { assert!(!T::Class::IS_WIDE || matches!(T::BIAS_BITS, None | Some(WIDE_BIAS_BITS))) };
        let run = *self.run;
        // SAFETY: the kernel's own contract; all pointers stay inside the memory that it describes.
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
                    // A number of rows that an instruction set has no registers for is not compiled.
                    row_idx += match run.n_rows - row_idx {
                        8.. if const { S::MAX_DIRECT_ROWS >= 8 } => Direct::<T, 8>::call::<S>(&part),
                        6.. if const { S::MAX_DIRECT_ROWS >= 6 } => Direct::<T, 6>::call::<S>(&part),
                        4.. => Direct::<T, 4>::call::<S>(&part),
                        2.. => Direct::<T, 2>::call::<S>(&part),
                        _ => Direct::<T, 1>::call::<S>(&part),
                    };
                }
            }
        }
    }
}

/// The products of one tile and `ROWS` rows, unpacked in registers.
struct Direct<'a, T, const ROWS: usize> {
    run: &'a TileRun,
    tile: std::marker::PhantomData<T>,
}

impl<'a, T: QuantTile, const ROWS: usize> Direct<'a, T, ROWS> {
    /// Runs the kernel as a separate function, and returns `ROWS`.
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
        if const { S::UNROLLS } && (T::Block::LEN == SPAN_COLS || span.n_subs == SPAN_SUBS) {
            // The calls are unrolled, so that shifts and bit positions are constants.
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
                let mut sum = start::<S, T::Class>(block, run, T::BIAS_BITS);
                if ROWS > 4 {
                    for g in i * run_len..(i + 1) * run_len {
                        sum = dot::<S, T::Class>(sum, w[g], S::load_splat(x.add(4 * g)));
                    }
                } else {
                    // Two chains: with few rows little else hides the latency.
                    let mut odd = S::splat(0);
                    for pair in i * run_len / 2..(i + 1) * run_len / 2 {
                        let g = 2 * pair;
                        sum = dot::<S, T::Class>(sum, w[g], S::load_splat(x.add(4 * g)));
                        odd = dot::<S, T::Class>(odd, w[g + 1], S::load_splat(x.add(4 * g + 4)));
                    }
                    sum = S::add_i32(sum, odd);
                }
                parts[row] = add_run::<S, T::Class>(parts[row], sum, scales.scale(run), block, run);
                if T::Class::HAS_OFFSETS {
                    parts[row] = add_offset::<S>(parts[row], scales.offset(sub), block, sub);
                }
            }
        }
        if ROWS == 1 {
            // Without it LLVM reads the columns of a whole span first, many times what registers hold. `Q6_K`
            // alone would do without; its loss is beyond the speed of memory.
            S::settle(parts[0]);
        }
    }
}

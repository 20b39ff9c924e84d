//! [`AddValues`]: sums of values times weights, converted on load.
//!
//! Scores come before. Invariant: an output adds positions in order, whatever rows go with it.

use std::ops::Range;

use crate::simd::{Kernel, Simd};

use super::{BLOCK_COLS, LINE_BYTES, PAGE_LEN, SCALE_BYTES, SPLIT_TOKENS, page_behind, page_types::PageType};

/// The arguments of sums of values. `weights` points to as many rows of [`SPLIT_TOKENS`] as `seen` has
/// ranges, `out` to as many rows of `padded_dim`, each `out_stride` after the one before. The pages are
/// whole, and the ranges that are not empty are inside them.
#[derive(Clone, Copy)]
pub(super) struct SeenValues<'a> {
    pub(super) weights: *const f32,
    pub(super) values: &'a [&'a [u8]],
    pub(super) next: &'a [&'a [u8]],
    pub(super) seen: &'a [Range<usize>],
    pub(super) padded_dim: usize,
    pub(super) row_dim: usize,
    pub(super) out: *mut f32,
    pub(super) out_stride: usize,
}

impl SeenValues<'_> {
    /// Returns the rows after the first `n_rows`.
    ///
    /// # Safety
    /// There are at least `n_rows` rows.
    #[inline(always)]
    pub(super) unsafe fn behind(self, n_rows: usize) -> Self {
        // SAFETY: the rows follow the pointers.
        unsafe {
            Self {
                weights: self.weights.add(n_rows * SPLIT_TOKENS),
                seen: &self.seen[n_rows..],
                // The first rows prefetch these pages.
                next: &[],
                // With one more row the pointer may be beyond the end.
                out: self.out.wrapping_add(n_rows * self.out_stride),
                ..self
            }
        }
    }
}

/// Adds values times weights, converted on load.
pub(super) struct AddValues<'a, P> {
    run: SeenValues<'a>,
    page: std::marker::PhantomData<P>,
}

impl<'a, P: PageType> AddValues<'a, P> {
    /// # Safety
    /// The contract of [`SeenValues`] holds.
    pub(super) unsafe fn new(run: SeenValues<'a>) -> Self {
        Self {
            run,
            page: std::marker::PhantomData,
        }
    }
}

/// The number of rows that share the loads of values.
const VALUE_ROWS: usize = 4;

impl<P: PageType> Kernel for AddValues<'_, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut run = self.run;
        while !run.seen.is_empty() {
            let n_rows = run.seen.len().min(VALUE_ROWS);
            let seen = &run.seen[..n_rows];
            // Values that all rows see are loaded once for all of them.
            let start = seen.iter().map(|seen| seen.start).max().unwrap_or(0);
            let end = seen.iter().map(|seen| seen.end).min().unwrap_or(0).max(start);
            // SAFETY: as many rows as `seen` has follow the pointers, and positions are inside the pages.
            unsafe {
                for (row, seen) in seen.iter().enumerate() {
                    add_run::<S, P>(&run, row, 1, seen.start..seen.end.min(start));
                }
                add_run::<S, P>(&run, 0, n_rows, start..end);
                for (row, seen) in seen.iter().enumerate() {
                    add_run::<S, P>(&run, row, 1, seen.start.max(end)..seen.end);
                }
                run = run.behind(n_rows);
            }
        }
    }
}

/// Adds the values at `tokens` for `n_rows` rows.
#[inline(always)]
unsafe fn add_run<S: Simd, P: PageType>(
    run: &SeenValues<'_>,
    first_row: usize,
    n_rows: usize,
    tokens: Range<usize>,
) {
    if tokens.is_empty() {
        return;
    }
    let mut row_idx = first_row;
    let end = first_row + n_rows;
    while row_idx < end {
        // SAFETY: the caller vouches for the rows and the tokens.
        unsafe {
            let part = ValueRun {
                weights: run.weights.add(row_idx * SPLIT_TOKENS),
                values: run.values,
                next: run.next,
                tokens: tokens.clone(),
                padded_dim: run.padded_dim,
                row_dim: run.row_dim,
                out: run.out.add(row_idx * run.out_stride),
                out_stride: run.out_stride,
            };
            row_idx += match (end - row_idx, run.next.is_empty()) {
                (4.., true) => ValueRows::<P, 4, false>::call::<S>(part),
                (4.., false) => ValueRows::<P, 4, true>::call::<S>(part),
                (2.., true) => ValueRows::<P, 2, false>::call::<S>(part),
                (2.., false) => ValueRows::<P, 2, true>::call::<S>(part),
                (_, true) => ValueRows::<P, 1, false>::call::<S>(part),
                (_, false) => ValueRows::<P, 1, true>::call::<S>(part),
            };
        }
    }
}

/// Rows of [`SeenValues`] that see the same `tokens`.
struct ValueRun<'a> {
    weights: *const f32,
    values: &'a [&'a [u8]],
    next: &'a [&'a [u8]],
    tokens: Range<usize>,
    padded_dim: usize,
    row_dim: usize,
    out: *mut f32,
    out_stride: usize,
}

/// Adds the values for `ROWS` rows; with `HAS_NEXT` it prefetches the next pages.
struct ValueRows<'a, P, const ROWS: usize, const HAS_NEXT: bool> {
    run: ValueRun<'a>,
    page: std::marker::PhantomData<P>,
}

impl<'a, P: PageType, const ROWS: usize, const HAS_NEXT: bool> ValueRows<'a, P, ROWS, HAS_NEXT> {
    /// Runs the kernel as a separate function, and returns `ROWS`.
    #[inline(always)]
    unsafe fn call<S: Simd>(run: ValueRun<'a>) -> usize {
        // SAFETY: the caller's contract is the kernel's.
        unsafe {
            S::call(Self {
                run,
                page: std::marker::PhantomData,
            });
        }
        ROWS
    }
}

impl<P: PageType, const ROWS: usize, const HAS_NEXT: bool> Kernel for ValueRows<'_, P, ROWS, HAS_NEXT> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n_vectors = self.run.padded_dim / S::LANES;
        let mut vector_idx = 0;
        while vector_idx < n_vectors {
            // SAFETY: the kernel's own contract; the vectors are inside the rows.
            unsafe {
                vector_idx += if S::LANES == 16 && n_vectors - vector_idx >= 4 {
                    value_vectors::<S, P, ROWS, HAS_NEXT, 4>(&self.run, vector_idx)
                } else if n_vectors - vector_idx >= 2 {
                    value_vectors::<S, P, ROWS, HAS_NEXT, 2>(&self.run, vector_idx)
                } else {
                    value_vectors::<S, P, ROWS, HAS_NEXT, 1>(&self.run, vector_idx)
                };
            }
        }
    }
}

/// Adds `VECTORS` vectors of columns for `ROWS` rows; returns `VECTORS`.
#[inline(always)]
unsafe fn value_vectors<
    S: Simd,
    P: PageType,
    const ROWS: usize,
    const HAS_NEXT: bool,
    const VECTORS: usize,
>(
    run: &ValueRun<'_>,
    vector_idx: usize,
) -> usize {
    // SAFETY: the caller's contract is that of `ValueRun`, and vectors up to `vector_idx + VECTORS` are inside the rows.
    unsafe {
        let mut sums = [[S::splat_f32(0.0); VECTORS]; ROWS];
        for row in 0..ROWS {
            for v in 0..VECTORS {
                let at = row * run.out_stride + (vector_idx + v) * S::LANES;
                sums[row][v] = S::load_f32(run.out.add(at));
            }
        }
        // The number of vectors that share a prefetch: those in one line, and in the same 32 columns if these
        // are stored together.
        let n_together = if P::HAS_SCALES {
            BLOCK_COLS / S::LANES
        } else {
            VECTORS
        };
        let n_together = n_together.min((8 * LINE_BYTES / (S::LANES * P::BITS)).max(1));
        let mut token = run.tokens.start;
        while token < run.tokens.end {
            let page_idx = token / PAGE_LEN;
            let page = run.values[page_idx].as_ptr();
            let end = run.tokens.end.min((page_idx + 1) * PAGE_LEN);
            // The base pointer of each vector's numbers, and the index of the page's first token there.
            let mut ptrs = [page; VECTORS];
            let mut starts = [0; VECTORS];
            let mut next = [if HAS_NEXT {
                page_behind(run.next, page_idx)
            } else {
                page
            }; VECTORS];
            let mut scales = [[0.0f32; PAGE_LEN]; VECTORS];
            for v in 0..VECTORS {
                let col = (vector_idx + v) * S::LANES;
                if P::HAS_SCALES {
                    let block = page.add(col / BLOCK_COLS * P::BLOCK_BYTES);
                    ptrs[v] = block.add(SCALE_BYTES);
                    next[v] = next[v].wrapping_add(col / BLOCK_COLS * P::BLOCK_BYTES + SCALE_BYTES);
                    starts[v] = col % BLOCK_COLS;
                    for half in 0..S::HALVES {
                        let scale = S::load_f16(block.add(2 * half * S::LANES));
                        S::store_f32(scales[v].as_mut_ptr().add(half * S::LANES), scale);
                    }
                } else {
                    starts[v] = col;
                }
            }
            let stride = if P::HAS_SCALES { BLOCK_COLS } else { run.row_dim };
            while token < end {
                let lane = token % PAGE_LEN;
                let mut values = [S::splat_f32(0.0); VECTORS];
                if HAS_NEXT {
                    for v in (0..VECTORS).step_by(n_together) {
                        S::prefetch(next[v].wrapping_add((lane * stride + starts[v]) * P::BITS / 8));
                    }
                }
                for v in 0..VECTORS {
                    values[v] = P::load::<S>(ptrs[v], lane * stride + starts[v]);
                    if P::HAS_SCALES {
                        values[v] = S::mul(values[v], S::splat_f32(scales[v][lane]));
                    }
                }
                for row in 0..ROWS {
                    let weight = S::splat_f32(*run.weights.add(row * SPLIT_TOKENS + token));
                    for v in 0..VECTORS {
                        sums[row][v] = S::fma(values[v], weight, sums[row][v]);
                    }
                }
                token += 1;
            }
        }
        for row in 0..ROWS {
            for v in 0..VECTORS {
                let at = row * run.out_stride + (vector_idx + v) * S::LANES;
                S::store_f32(run.out.add(at), sums[row][v]);
            }
        }
    }
    VECTORS
}

//! Attention over pages of signed bytes with scales, in integers: [`PrepareQueries`], [`ByteScores`] and [`ByteValues`].
//!
//! Unlike the kernels that convert numbers to f32 on load, these multiply integers on both sides. Scores: a
//! query's 32 columns are bytes with a scale of their own, like a key's. Values: a row's weights are
//! multiplied by the values' scales and become integers of 15 bits. One scale for a split and 32 columns maps
//! the largest to 32767. With 8 bits, all weights of a long and even context would be rounded to a few steps.
//!
//! Invariant: integers are summed exactly, so their order does not matter; scores add the products of 32
//! columns in order, with one fused multiply-add each. The rounding of a row's weights depends only on the
//! positions that the row sees, whatever rows go with it.
//!
//! | page | order of the bytes of 32 columns |
//! |---|---|
//! | keys, biased by 128 | `[8 groups of columns][16 tokens][4 columns]` |
//! | values | `[8 pairs of tokens][32 columns][2 tokens]` |
//!
//! The numbers that a product sums are adjacent.

use std::{mem::MaybeUninit, ops::Range};

use crate::{
    activation_block::quantize_run,
    lanes::{lanes, largest as largest_of},
    simd::{Kernel, Simd},
};

use super::{
    BLOCK_COLS, LINE_BYTES, PAGE_LEN, SCALE_BYTES, SPLIT_TOKENS, Scores, page_behind, prefetch_lines,
    value_sums::SeenValues,
};

/// The number of bytes of 32 columns of a page.
const BLOCK_BYTES: usize = SCALE_BYTES + PAGE_LEN * BLOCK_COLS;

/// The number of words of 32 columns of a query: their bytes, the scale, and minus 128 times the sum of the
/// bytes. The sums of products with keys, which are biased by 128, start from that last word, or from 0 if
/// products subtract the 128 themselves.
const QUERY_WORDS: usize = BLOCK_COLS / 4 + 2;
/// The index of the scale's word.
const SCALE_WORD: usize = BLOCK_COLS / 4;
/// The index of the start's word.
const START_WORD: usize = SCALE_WORD + 1;

/// The value that a row's largest product of weight and scale is mapped to.
const LARGEST_WEIGHT: f32 = i16::MAX as f32;

/// Converts queries to bytes, in place: the first [`QUERY_WORDS`] for each 32 columns of each row of
/// `key_dim` numbers are then the input of [`ByteScores`].
pub(super) struct PrepareQueries<'a> {
    pub(super) rows: &'a mut [f32],
    pub(super) key_dim: usize,
}

impl Kernel for PrepareQueries<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in self.rows.chunks_exact_mut(self.key_dim) {
            for block in 0..self.key_dim / BLOCK_COLS {
                let mut values = [0.0; BLOCK_COLS];
                values.copy_from_slice(&row[block * BLOCK_COLS..][..BLOCK_COLS]);
                let mut quants = [0i8; BLOCK_COLS];
                // SAFETY: the processor has the features of `S`, and 32 numbers are a whole number of vectors.
                let scale = unsafe { quantize_run::<S>(&values, &mut quants) };
                let sum: i32 = quants.iter().map(|&quant| i32::from(quant)).sum();
                // They end before the columns that are not read yet.
                let words = &mut row[block * QUERY_WORDS..][..QUERY_WORDS];
                for (word, quants) in words.iter_mut().zip(quants.as_chunks::<4>().0) {
                    *word = f32::from_bits(u32::from_ne_bytes(quants.map(|quant| quant as u8)));
                }
                words[SCALE_WORD] = scale;
                words[START_WORD] = f32::from_bits((-128 * sum) as u32);
            }
        }
    }
}

/// [`Scores`] for keys that are bytes and queries that went through [`PrepareQueries`]; `key_dim` is a
/// multiple of 32.
pub(super) struct ByteScores<'a> {
    run: Scores<'a>,
}

impl<'a> ByteScores<'a> {
    /// # Safety
    /// The contract of [`Scores`] holds, and the queries are bytes.
    pub(super) unsafe fn new(run: Scores<'a>) -> Self {
        Self { run }
    }
}

impl Kernel for ByteScores<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = &self.run;
        let mut row_idx = 0;
        while row_idx < run.n_rows {
            // SAFETY: `n_rows` rows follow the pointers.
            unsafe {
                // The first rows prefetch the next pages.
                let has_next = row_idx == 0 && !run.next.is_empty();
                row_idx += match (run.n_rows - row_idx, has_next) {
                    (4.., false) => ScoreRows::<4, false>::call::<S>(run, row_idx),
                    (4.., true) => ScoreRows::<4, true>::call::<S>(run, row_idx),
                    (2.., false) => ScoreRows::<2, false>::call::<S>(run, row_idx),
                    (2.., true) => ScoreRows::<2, true>::call::<S>(run, row_idx),
                    (_, false) => ScoreRows::<1, false>::call::<S>(run, row_idx),
                    (_, true) => ScoreRows::<1, true>::call::<S>(run, row_idx),
                };
            }
        }
    }
}

/// The scores of `ROWS` rows; with `HAS_NEXT` the kernel prefetches the next pages.
struct ScoreRows<'a, const ROWS: usize, const HAS_NEXT: bool> {
    q: *const f32,
    key_dim: usize,
    keys: &'a [&'a [u8]],
    next: &'a [&'a [u8]],
    out: *mut f32,
}

impl<'a, const ROWS: usize, const HAS_NEXT: bool> ScoreRows<'a, ROWS, HAS_NEXT> {
    /// Runs the kernel as a separate function, and returns `ROWS`.
    #[inline(always)]
    unsafe fn call<S: Simd>(run: &'a Scores<'a>, row_idx: usize) -> usize {
        // SAFETY: the caller vouches for `ROWS` rows from `row_idx` on.
        unsafe {
            S::call(Self {
                q: run.q.add(row_idx * run.key_dim),
                key_dim: run.key_dim,
                keys: run.keys,
                next: run.next,
                out: run.out.add(row_idx * SPLIT_TOKENS),
            });
        }
        ROWS
    }
}

impl<const ROWS: usize, const HAS_NEXT: bool> Kernel for ScoreRows<'_, ROWS, HAS_NEXT> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n_vectors = self.keys.len() * S::HALVES;
        let mut vector_idx = 0;
        while vector_idx < n_vectors {
            // SAFETY: the kernel's own contract; the vectors are inside the pages.
            unsafe {
                vector_idx += if n_vectors - vector_idx >= 2 {
                    score_vectors::<S, ROWS, HAS_NEXT, 2>(&self, vector_idx)
                } else {
                    score_vectors::<S, ROWS, HAS_NEXT, 1>(&self, vector_idx)
                };
            }
        }
    }
}

/// Computes the scores of `ROWS` rows and `VECTORS` vectors of keys; returns `VECTORS`.
#[inline(always)]
unsafe fn score_vectors<S: Simd, const ROWS: usize, const HAS_NEXT: bool, const VECTORS: usize>(
    rows: &ScoreRows<'_, ROWS, HAS_NEXT>,
    vector_idx: usize,
) -> usize {
    // SAFETY: the caller's contract is that of `Scores`, and vectors up to `vector_idx + VECTORS` are inside the pages.
    unsafe {
        let mut pages = [std::ptr::null::<u8>(); VECTORS];
        let mut lanes = [0; VECTORS];
        let mut next = [std::ptr::null::<u8>(); VECTORS];
        for v in 0..VECTORS {
            let page_idx = (vector_idx + v) / S::HALVES;
            pages[v] = rows.keys[page_idx].as_ptr();
            lanes[v] = (vector_idx + v) % S::HALVES * S::LANES;
            next[v] = page_behind(rows.next, page_idx);
        }
        let mut sums = [[S::splat_f32(0.0); VECTORS]; ROWS];
        for block in 0..rows.key_dim / BLOCK_COLS {
            let q = rows.q.add(block * QUERY_WORDS);
            let mut acc = [[S::splat(0); VECTORS]; ROWS];
            for row in 0..ROWS {
                let start = if S::CENTERS_WIDE {
                    S::splat(0)
                } else {
                    S::load_splat(q.add(row * rows.key_dim + START_WORD).cast())
                };
                for v in 0..VECTORS {
                    acc[row][v] = start;
                }
            }
            for group in 0..BLOCK_COLS / 4 {
                let at = block * BLOCK_BYTES + SCALE_BYTES + 4 * group * PAGE_LEN;
                if HAS_NEXT {
                    prefetch_lines::<S, VECTORS>(&next, at, LINE_BYTES);
                }
                let mut keys = [S::splat(0); VECTORS];
                for v in 0..VECTORS {
                    let numbers = pages[v].add(block * BLOCK_BYTES + SCALE_BYTES);
                    keys[v] = S::load(numbers.add(4 * (group * PAGE_LEN + lanes[v])));
                }
                for row in 0..ROWS {
                    let query = S::load_splat(q.add(row * rows.key_dim + group).cast());
                    for v in 0..VECTORS {
                        acc[row][v] = if S::CENTERS_WIDE {
                            S::dot_centered(acc[row][v], keys[v], query)
                        } else {
                            S::dot_u8::<true>(acc[row][v], keys[v], query)
                        };
                    }
                }
            }
            for v in 0..VECTORS {
                let scale = S::load_f16(pages[v].add(block * BLOCK_BYTES + 2 * lanes[v]));
                for row in 0..ROWS {
                    let q_scale = S::splat_f32(*q.add(row * rows.key_dim + SCALE_WORD));
                    let sum = S::to_f32(acc[row][v]);
                    sums[row][v] = S::fma(sum, S::mul(scale, q_scale), sums[row][v]);
                }
            }
        }
        for row in 0..ROWS {
            for v in 0..VECTORS {
                let at = row * SPLIT_TOKENS + (vector_idx + v) * S::LANES;
                S::store_f32(rows.out.add(at), sums[row][v]);
            }
        }
    }
    VECTORS
}

/// Adds byte values times weights from 0 to 1; `padded_dim` is a multiple of 32 and the width of the pages'
/// rows.
pub(super) struct ByteValues<'a> {
    run: SeenValues<'a>,
}

impl<'a> ByteValues<'a> {
    /// # Safety
    /// The contract of [`SeenValues`] holds.
    pub(super) unsafe fn new(run: SeenValues<'a>) -> Self {
        Self { run }
    }
}

impl Kernel for ByteValues<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut run = self.run;
        while !run.seen.is_empty() {
            // SAFETY: as many rows as `seen` has follow the pointers.
            unsafe {
                let n_rows = match (run.seen.len(), !run.next.is_empty()) {
                    (8.., false) => RowSums::<8, false>::call::<S>(run),
                    (8.., true) => RowSums::<8, true>::call::<S>(run),
                    (4.., false) => RowSums::<4, false>::call::<S>(run),
                    (4.., true) => RowSums::<4, true>::call::<S>(run),
                    (2.., false) => RowSums::<2, false>::call::<S>(run),
                    (2.., true) => RowSums::<2, true>::call::<S>(run),
                    (_, false) => RowSums::<1, false>::call::<S>(run),
                    (_, true) => RowSums::<1, true>::call::<S>(run),
                };
                run = run.behind(n_rows);
            }
        }
    }
}

/// [`ByteValues`] of the first `ROWS` rows; with `HAS_NEXT` the kernel prefetches the next pages.
struct RowSums<'a, const ROWS: usize, const HAS_NEXT: bool> {
    run: SeenValues<'a>,
}

impl<'a, const ROWS: usize, const HAS_NEXT: bool> RowSums<'a, ROWS, HAS_NEXT> {
    /// Runs the kernel as a separate function, and returns `ROWS`.
    #[inline(always)]
    unsafe fn call<S: Simd>(run: SeenValues<'a>) -> usize {
        // SAFETY: the caller's contract is the kernel's.
        unsafe { S::call(Self { run }) };
        ROWS
    }
}

impl<const ROWS: usize, const HAS_NEXT: bool> Kernel for RowSums<'_, ROWS, HAS_NEXT> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = self.run;
        let Some(pages) = pages_seen(&run.seen[..ROWS]) else {
            return;
        };
        let mut weights = Weights {
            integers: MaybeUninit::uninit(),
            scales: [0.0; ROWS],
        };
        for block in 0..run.padded_dim / BLOCK_COLS {
            // SAFETY: the kernel's own contract; pages and columns are inside the split.
            unsafe {
                round_weights::<S, ROWS>(&run, block, pages.clone(), &mut weights);
                // With 16 lanes two vectors share a load of weights; with 8 there are no registers for them.
                if S::LANES == 16 {
                    for vector in (0..BLOCK_COLS / S::LANES).step_by(2) {
                        add_vectors::<S, ROWS, HAS_NEXT, 2>(&run, &weights, block, vector, pages.clone());
                    }
                } else {
                    for vector in 0..BLOCK_COLS / S::LANES {
                        add_vectors::<S, ROWS, HAS_NEXT, 1>(&run, &weights, block, vector, pages.clone());
                    }
                }
            }
        }
    }
}

/// Returns the pages that rows see; `None` if they see none.
#[inline(always)]
fn pages_seen(seen: &[Range<usize>]) -> Option<Range<usize>> {
    let seen = seen.iter().filter(|seen| !seen.is_empty());
    let start = seen.clone().map(|seen| seen.start).min()?;
    let end = seen.map(|seen| seen.end).max()?;
    Some(start / PAGE_LEN..end.div_ceil(PAGE_LEN))
}

/// The weights of rows for 32 columns, times the values' scales; only the pages that a row sees are set.
#[repr(C, align(64))]
struct Weights<const ROWS: usize> {
    integers: MaybeUninit<[[i16; SPLIT_TOKENS]; ROWS]>,
    scales: [f32; ROWS],
}

/// Numbers of a split, aligned for vector loads and stores.
#[repr(C, align(64))]
struct OfSplit([f32; SPLIT_TOKENS]);

/// Multiplies the rows' weights by the values' scales and rounds them to 15 bits of the row's largest
/// product; masked positions become 0. The integers of a row that sees nothing are undefined, but its scale
/// is 0. They are undefined too if a weight is NaN; the sum of the row's weights and all quotients by it are
/// then NaN as well.
#[inline(always)]
unsafe fn round_weights<S: Simd, const ROWS: usize>(
    run: &SeenValues<'_>,
    block: usize,
    pages: Range<usize>,
    weights: &mut Weights<ROWS>,
) {
    let (mut scales, mut products) = (OfSplit([0.0; SPLIT_TOKENS]), OfSplit([0.0; SPLIT_TOKENS]));
    let mut has_numbers = true;
    let tokens = pages.start * PAGE_LEN..pages.end * PAGE_LEN;
    for row in 0..ROWS {
        // SAFETY: the caller's contract; a page of weights is a whole number of vectors, inside the split.
        unsafe {
            // Rows of one token see the same positions, and so do most others.
            if row == 0 || run.seen[row] != run.seen[row - 1] {
                has_numbers = load_scales::<S>(run, row, block, pages.clone(), &mut scales);
            }
            let exact = run.weights.add(row * SPLIT_TOKENS);
            let mut largest = [S::splat_f32(0.0); 2];
            for at in tokens.clone().step_by(PAGE_LEN) {
                for half in 0..S::HALVES {
                    let at = at + half * S::LANES;
                    let product = S::mul(S::load_f32(exact.add(at)), S::load_f32(scales.0.as_ptr().add(at)));
                    S::store_f32(products.0.as_mut_ptr().add(at), product);
                    largest[half] = S::max(product, largest[half]);
                }
            }
            let largest = largest_of(lanes::<S>(largest));
            weights.scales[row] = if has_numbers {
                largest / LARGEST_WEIGHT
            } else {
                f32::NAN
            };
            let inverse = LARGEST_WEIGHT / largest;
            let inverse = S::splat_f32(if inverse.is_finite() { inverse } else { 0.0 });
            let integers = (weights.integers.as_mut_ptr().cast::<i16>()).add(row * SPLIT_TOKENS);
            for at in tokens.clone().step_by(S::LANES) {
                let product = S::load_f32(products.0.as_ptr().add(at));
                S::store_low_halves(integers.add(at), S::to_i32(S::mul(product, inverse)));
            }
        }
    }
}

/// Writes the scales of the values that a row sees, and 0 for the others. Returns whether all are valid
/// scales: finite and not negative.
#[inline(always)]
unsafe fn load_scales<S: Simd>(
    run: &SeenValues<'_>,
    row: usize,
    block: usize,
    pages: Range<usize>,
    scales: &mut OfSplit,
) -> bool {
    let tokens = pages.start * PAGE_LEN..pages.end * PAGE_LEN;
    let seen = if run.seen[row].is_empty() {
        tokens.start..tokens.start
    } else {
        run.seen[row].clone()
    };
    for page in pages {
        for lane in (0..PAGE_LEN).step_by(S::LANES) {
            // SAFETY: the caller's contract; pages are whole, and inside the split.
            unsafe {
                let of_page = run.values[page].as_ptr().add(block * BLOCK_BYTES);
                let at = page * PAGE_LEN + lane;
                S::store_f32(scales.0.as_mut_ptr().add(at), S::load_f16(of_page.add(2 * lane)));
            }
        }
    }
    // Masked positions may hold stale NaNs, so zero their scales.
    scales.0[tokens.start..seen.start].fill(0.0);
    scales.0[seen.end..tokens.end].fill(0.0);
    // Scales are not negative, so they have the order of their bits, and NaN is the largest.
    let largest = (scales.0[tokens].iter()).fold(0, |largest: u32, x| largest.max(x.to_bits()));
    largest < f32::INFINITY.to_bits()
}

/// Adds the products of `ROWS` rows of weights and `VECTORS` vectors of 32 columns.
#[inline(always)]
unsafe fn add_vectors<S: Simd, const ROWS: usize, const HAS_NEXT: bool, const VECTORS: usize>(
    run: &SeenValues<'_>,
    weights: &Weights<ROWS>,
    block: usize,
    first_vector: usize,
    pages: Range<usize>,
) {
    // SAFETY: the caller's contract; every load is inside its page or the row's weights.
    unsafe {
        let mut sums = [[S::splat(0); VECTORS]; ROWS];
        let integers = weights.integers.as_ptr().cast::<i16>();
        for page in pages {
            let numbers = (run.values[page].as_ptr()).add(block * BLOCK_BYTES + SCALE_BYTES);
            for pair in 0..PAGE_LEN / 2 {
                if HAS_NEXT && first_vector == 0 {
                    let at = block * BLOCK_BYTES + SCALE_BYTES + 2 * pair * BLOCK_COLS;
                    prefetch_lines::<S, 1>(&[page_behind(run.next, page)], at, LINE_BYTES);
                }
                let mut values = [S::splat(0); VECTORS];
                for v in 0..VECTORS {
                    let col = (first_vector + v) * S::LANES;
                    values[v] = S::load_i8_pairs(numbers.add(2 * (pair * BLOCK_COLS + col)));
                }
                let at = page * PAGE_LEN + 2 * pair;
                for row in 0..ROWS {
                    let weight = S::load_splat(integers.add(row * SPLIT_TOKENS + at).cast());
                    for v in 0..VECTORS {
                        sums[row][v] = S::dot_i16_of_many(sums[row][v], weight, values[v]);
                    }
                }
            }
        }
        for row in 0..ROWS {
            let scale = S::splat_f32(weights.scales[row]);
            for v in 0..VECTORS {
                let col = block * BLOCK_COLS + (first_vector + v) * S::LANES;
                let out = run.out.add(row * run.out_stride + col);
                S::store_f32(out, S::fma(S::to_f32(sums[row][v]), scale, S::load_f32(out)));
            }
        }
    }
}

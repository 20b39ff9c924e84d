//! [`PageOps`]: attention over pages: scores and sums of values; the step between them is in
//! [`softmax`](super::softmax).
//!
//! The kernels work on a *split*: up to [`SPLIT_PAGES`] pages of one head, and rows, each a query head of a
//! token; several rows share each load. This file has the kernels that convert numbers on load, with the
//! arithmetic of f32; the kernels that multiply bytes are in `bytes`.
//!
//! Invariant: a row's numbers are reduced in one order, whatever rows and pages go with it. A score sums
//! columns in order, an output sums positions in order. The order of scores for keys stored row by row is
//! in `row_scores`.

mod bytes;
mod page_types;
mod row_scores;
mod value_sums;

use std::ops::Range;

use tokenmill_quant::CpuFeatures;

use crate::simd::{Kernel, Simd, TILE_ROWS, dispatch};

use bytes::{ByteScores, ByteValues, PrepareQueries};
use page_types::{E4M3Page, F16Page, F32Page, PageType, Q4Page, Q8Page};
use row_scores::RowScoresOf;
use value_sums::{AddValues, SeenValues};

/// The number of positions in a page: the lanes of the widest vector.
pub(crate) const PAGE_LEN: usize = TILE_ROWS;
/// The number of pages in a split.
pub const SPLIT_PAGES: usize = 16;
/// The number of positions in a split.
pub const SPLIT_TOKENS: usize = SPLIT_PAGES * PAGE_LEN;

/// The number of columns that share a scale for each token, in the types with scales. For each such group,
/// their pages have 16 scales and then the numbers in the page's order.
const BLOCK_COLS: usize = 32;
/// The number of bytes of the scales.
const SCALE_BYTES: usize = 2 * PAGE_LEN;

/// The pages of a split that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub struct SplitPages<'a> {
    /// The pages to read, at most [`SPLIT_PAGES`].
    pub pages: &'a [&'a [u8]],
    /// The pages that this or another kernel reads next: while it reads a page, it prefetches the page of the
    /// same index here. There may be fewer of them, or none.
    pub next: &'a [&'a [u8]],
}

impl<'a> SplitPages<'a> {
    /// Creates pages without next pages.
    pub fn only(pages: &'a [&'a [u8]]) -> Self {
        Self { pages, next: &[] }
    }
}

/// The number of bytes that a prefetch loads.
const LINE_BYTES: usize = 64;

/// Kernels for pages whose numbers are stored in one way.
#[derive(Debug)]
pub struct PageOps {
    head_bytes: fn(usize) -> usize,
    /// The number of columns of a query that are quantized together, if queries become bytes.
    query_block: Option<usize>,
    /// The kernel of scores for keys in column order, if the type supports it.
    scores: Option<unsafe fn(CpuFeatures, Scores<'_>)>,
    /// The kernel of scores for keys stored row by row like values, if the type supports it.
    row_scores: Option<unsafe fn(CpuFeatures, Scores<'_>)>,
    add_values: unsafe fn(CpuFeatures, SeenValues<'_>),
}

/// Pages of f32.
pub static F32_PAGES: PageOps = PageOps::of::<F32Page>();
/// Pages of half precision.
pub static F16_PAGES: PageOps = PageOps::of::<F16Page>();
/// Pages of signed bytes with a half-precision scale for each 32 columns of a token, multiplied in integers.
/// The bytes of 32 columns of keys, biased by 128, are `[8 groups of columns][16 tokens][4 columns]`, those
/// of values `[8 pairs of tokens][32 columns][2 tokens]`.
pub static Q8_0_PAGES: PageOps = PageOps {
    head_bytes: Q8Page::head_bytes,
    query_block: Some(BLOCK_COLS),
    // SAFETY: the function's own contract.
    scores: Some(|features, run| unsafe { dispatch(features, ByteScores::new(run)) }),
    row_scores: None,
    // SAFETY: the function's own contract.
    add_values: |features, run| unsafe { dispatch(features, ByteValues::new(run)) },
};
/// Pages of the same numbers, converted on load: the bytes of 32 columns are `[16 tokens][32 columns]`, for
/// keys that are values too.
pub static Q8_0_ROWS: PageOps = PageOps {
    scores: None,
    ..PageOps::of::<Q8Page>()
};
/// Pages of 8-bit floats, E4M3.
pub static E4M3_PAGES: PageOps = PageOps::of::<E4M3Page>();
/// Pages of 4-bit integers, biased by 8, with such scales. The first half of the numbers of 32 columns are
/// the low nibbles of the bytes, the second half the high ones.
pub static Q4_0_PAGES: PageOps = PageOps::of::<Q4Page>();

impl PageOps {
    const fn of<P: PageType>() -> Self {
        Self {
            head_bytes: P::head_bytes,
            query_block: None,
            // SAFETY: the function's own contract.
            scores: Some(|features, run| unsafe { dispatch(features, ScoresOf::<P>::new(run)) }),
            // SAFETY: the function's own contract.
            row_scores: Some(|features, run| unsafe { dispatch(features, RowScoresOf::<P>::new(run)) }),
            // SAFETY: the function's own contract.
            add_values: |features, run| unsafe { dispatch(features, AddValues::<P>::new(run)) },
        }
    }

    /// Converts queries, `[n_rows, key_dim]`, in place to the form that [`Self::scores`] reads.
    ///
    /// # Panics
    /// If the lengths contradict each other.
    pub fn prepare_queries(&self, features: CpuFeatures, q: &mut [f32], key_dim: usize) {
        if let Some(block) = self.query_block {
            assert!(
                key_dim.is_multiple_of(block) && q.len().is_multiple_of(key_dim),
                "queries of whole blocks"
            );
            // SAFETY: the kernel holds references only.
            unsafe { dispatch(features, PrepareQueries { rows: q, key_dim }) }
        }
    }

    /// Writes the products of queries and keys to `out`, `[n_rows, SPLIT_TOKENS]`: 16 numbers per page, at
    /// the start of each row. The queries `q`, `[n_rows, key_dim]`, went through [`Self::prepare_queries`].
    ///
    /// # Panics
    /// If the lengths contradict each other, and for [`Q8_0_ROWS`], whose keys are stored like values.
    pub fn scores(
        &self,
        features: CpuFeatures,
        q: &[f32],
        key_dim: usize,
        keys: SplitPages<'_>,
        out: &mut [f32],
    ) {
        let run = self.checked_scores(q, key_dim, keys, out);
        let scores = self.scores.expect("keys of such pages lie as values do");
        // SAFETY: the run was checked.
        unsafe { scores(features, run) }
    }

    /// Does the same as [`Self::scores`] for keys stored in their pages row by row, like values. `row_dim`
    /// is a multiple of 16.
    ///
    /// # Panics
    /// If the lengths contradict each other, and for [`Q8_0_PAGES`], whose keys are never stored that way.
    pub fn row_scores(
        &self,
        features: CpuFeatures,
        q: &[f32],
        row_dim: usize,
        keys: SplitPages<'_>,
        out: &mut [f32],
    ) {
        assert!(row_dim.is_multiple_of(PAGE_LEN), "rows of whole vectors");
        let run = self.checked_scores(q, row_dim, keys, out);
        let row_scores = self
            .row_scores
            .expect("keys of such pages have an order of their own");
        // SAFETY: the run was checked, and rows are whole vectors.
        unsafe { row_scores(features, run) }
    }

    /// Checks the lengths that kernels of scores rely on.
    fn checked_scores<'a>(
        &self,
        q: &'a [f32],
        key_dim: usize,
        keys: SplitPages<'a>,
        out: &'a mut [f32],
    ) -> Scores<'a> {
        let SplitPages { pages: keys, next } = keys;
        let n_rows = out.len() / SPLIT_TOKENS;
        assert!(
            keys.len() <= SPLIT_PAGES && q.len() == n_rows * key_dim,
            "queries"
        );
        assert!(key_dim.is_multiple_of(self.query_block.unwrap_or(1)), "blocks");
        let page_bytes = PAGE_LEN * (self.head_bytes)(key_dim);
        assert!(keys.iter().all(|page| page.len() == page_bytes), "pages of keys");
        Scores {
            q: q.as_ptr(),
            key_dim,
            keys,
            next,
            n_rows,
            out: out.as_mut_ptr(),
        }
    }

    /// Adds values times weights to the first `padded_dim` of every `out_stride` numbers of `out`. Each row
    /// adds the values at the positions of the split in its range of `seen`, `[n_rows]`, with its `weights`,
    /// `[n_rows, SPLIT_TOKENS]`. Values are the first `padded_dim` columns of the pages' rows of `row_dim`.
    /// Weights are between 0 and 1, and 0 at masked positions; the weights of a row that sees nothing may be
    /// any numbers.
    ///
    /// # Panics
    /// If the lengths contradict each other.
    pub fn add_values(
        &self,
        features: CpuFeatures,
        weights: &[f32],
        values: SplitPages<'_>,
        seen: &[Range<usize>],
        [padded_dim, row_dim]: [usize; 2],
        out: &mut [f32],
        out_stride: usize,
    ) {
        let n_rows = seen.len();
        let SplitPages { pages: values, next } = values;
        assert!(
            weights.len() == n_rows * SPLIT_TOKENS
                && values.len() <= SPLIT_PAGES
                && (seen.iter()).all(|seen| seen.is_empty() || seen.end <= values.len() * PAGE_LEN),
            "tokens of a split"
        );
        assert!(
            out_stride >= padded_dim
                && out.len() + out_stride >= n_rows * out_stride + padded_dim
                && padded_dim.is_multiple_of(self.query_block.unwrap_or(PAGE_LEN))
                && padded_dim <= row_dim,
            "outputs"
        );
        let page_bytes = PAGE_LEN * (self.head_bytes)(row_dim);
        assert!(
            values.iter().all(|page| page.len() == page_bytes),
            "pages of values"
        );
        let run = SeenValues {
            weights: weights.as_ptr(),
            values,
            next,
            seen,
            padded_dim,
            row_dim,
            out: out.as_mut_ptr(),
            out_stride,
        };
        // SAFETY: the lengths above are those of the kernel's contract.
        unsafe { (self.add_values)(features, run) }
    }
}

/// The products of queries and keys: `q` points to `n_rows` rows of `key_dim`, `out` to as many rows of
/// [`SPLIT_TOKENS`], and the pages are whole.
struct Scores<'a> {
    q: *const f32,
    key_dim: usize,
    keys: &'a [&'a [u8]],
    next: &'a [&'a [u8]],
    n_rows: usize,
    out: *mut f32,
}

/// [`Scores`] for pages of one kind.
struct ScoresOf<'a, P> {
    run: Scores<'a>,
    page: std::marker::PhantomData<P>,
}

impl<'a, P: PageType> ScoresOf<'a, P> {
    /// # Safety
    /// The contract of [`Scores`] holds.
    unsafe fn new(run: Scores<'a>) -> Self {
        Self {
            run,
            page: std::marker::PhantomData,
        }
    }
}

impl<P: PageType> Kernel for ScoresOf<'_, P> {
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
                    (4.., false) => ScoreRows::<P, 4, false>::call::<S>(run, row_idx),
                    (4.., true) => ScoreRows::<P, 4, true>::call::<S>(run, row_idx),
                    (2.., false) => ScoreRows::<P, 2, false>::call::<S>(run, row_idx),
                    (2.., true) => ScoreRows::<P, 2, true>::call::<S>(run, row_idx),
                    (_, false) => ScoreRows::<P, 1, false>::call::<S>(run, row_idx),
                    (_, true) => ScoreRows::<P, 1, true>::call::<S>(run, row_idx),
                };
            }
        }
    }
}

/// The scores of `ROWS` rows, starting at `row_idx`; with `HAS_NEXT` the kernel prefetches the next pages.
struct ScoreRows<'a, P, const ROWS: usize, const HAS_NEXT: bool> {
    run: &'a Scores<'a>,
    row_idx: usize,
    page: std::marker::PhantomData<P>,
}

impl<'a, P: PageType, const ROWS: usize, const HAS_NEXT: bool> ScoreRows<'a, P, ROWS, HAS_NEXT> {
    /// Runs the kernel as a separate function, and returns `ROWS`.
    #[inline(always)]
    unsafe fn call<S: Simd>(run: &'a Scores<'a>, row_idx: usize) -> usize {
        // SAFETY: the caller vouches for `ROWS` rows from `row_idx` on.
        unsafe {
            S::call(Self {
                run,
                row_idx,
                page: std::marker::PhantomData,
            });
        }
        ROWS
    }
}

impl<P: PageType, const ROWS: usize, const HAS_NEXT: bool> Kernel for ScoreRows<'_, P, ROWS, HAS_NEXT> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { run, row_idx, .. } = self;
        // Several vectors of keys share a load of a query's number: as many as there are registers for.
        let n_vectors = run.keys.len() * S::HALVES;
        let mut vector_idx = 0;
        while vector_idx < n_vectors {
            // SAFETY: the kernel's own contract; the vectors are inside the pages.
            unsafe {
                vector_idx += if S::LANES == 16 && n_vectors - vector_idx >= 4 {
                    score_vectors::<S, P, ROWS, HAS_NEXT, 4>(run, row_idx, vector_idx)
                } else if n_vectors - vector_idx >= 2 {
                    score_vectors::<S, P, ROWS, HAS_NEXT, 2>(run, row_idx, vector_idx)
                } else {
                    score_vectors::<S, P, ROWS, HAS_NEXT, 1>(run, row_idx, vector_idx)
                };
            }
        }
    }
}

/// Computes the scores of `ROWS` rows and `VECTORS` vectors of keys; returns `VECTORS`.
#[inline(always)]
unsafe fn score_vectors<
    S: Simd,
    P: PageType,
    const ROWS: usize,
    const HAS_NEXT: bool,
    const VECTORS: usize,
>(
    run: &Scores<'_>,
    row_idx: usize,
    vector_idx: usize,
) -> usize {
    let key_dim = run.key_dim;
    // SAFETY: the caller's contract is that of `Scores`, and vectors up to `vector_idx + VECTORS` are inside the pages.
    unsafe {
        let q = run.q.add(row_idx * key_dim);
        let out = run.out.add(row_idx * SPLIT_TOKENS);
        // Each vector's page, its first lane there, and the next page.
        let mut pages = [std::ptr::null::<u8>(); VECTORS];
        let mut lanes = [0; VECTORS];
        let mut next = [std::ptr::null::<u8>(); VECTORS];
        for v in 0..VECTORS {
            let page_idx = (vector_idx + v) / S::HALVES;
            pages[v] = run.keys[page_idx].as_ptr();
            lanes[v] = (vector_idx + v) % S::HALVES * S::LANES;
            next[v] = page_behind(run.next, page_idx);
        }
        let mut sums = [[S::splat_f32(0.0); VECTORS]; ROWS];
        if P::HAS_SCALES {
            for block in 0..key_dim / BLOCK_COLS {
                let mut scales = [S::splat_f32(0.0); VECTORS];
                let mut numbers = pages;
                for v in 0..VECTORS {
                    let start = pages[v].add(block * P::BLOCK_BYTES);
                    scales[v] = S::load_f16(start.add(2 * lanes[v]));
                    numbers[v] = start.add(SCALE_BYTES);
                }
                for i in 0..BLOCK_COLS {
                    let at = block * P::BLOCK_BYTES + SCALE_BYTES + i * PAGE_LEN * P::BITS / 8;
                    if HAS_NEXT {
                        prefetch_lines::<S, VECTORS>(&next, at, PAGE_LEN * P::BITS / 8);
                    }
                    let mut k = [S::splat_f32(0.0); VECTORS];
                    for v in 0..VECTORS {
                        let numbers = P::load::<S>(numbers[v], i * PAGE_LEN + lanes[v]);
                        k[v] = S::mul(numbers, scales[v]);
                    }
                    add_column::<S, ROWS, VECTORS>(&mut sums, &k, q.add(block * BLOCK_COLS + i), key_dim);
                }
            }
        } else {
            for col in 0..key_dim {
                if HAS_NEXT {
                    prefetch_lines::<S, VECTORS>(&next, col * PAGE_LEN * P::BYTES, PAGE_LEN * P::BYTES);
                }
                let mut k = [S::splat_f32(0.0); VECTORS];
                for v in 0..VECTORS {
                    k[v] = P::load::<S>(pages[v], col * PAGE_LEN + lanes[v]);
                }
                add_column::<S, ROWS, VECTORS>(&mut sums, &k, q.add(col), key_dim);
            }
        }
        for row in 0..ROWS {
            for v in 0..VECTORS {
                let at = row * SPLIT_TOKENS + (vector_idx + v) * S::LANES;
                S::store_f32(out.add(at), sums[row][v]);
            }
        }
    }
    VECTORS
}

/// Returns the start of the page to read after the one at `page_idx`, or null. Only prefetches use it.
#[inline(always)]
fn page_behind(next: &[&[u8]], page_idx: usize) -> *const u8 {
    next.get(page_idx).map_or(std::ptr::null(), |page| page.as_ptr())
}

/// Prefetches, in each of these pages, the line that begins within the `n_bytes` at `at`, if there is one.
#[inline(always)]
fn prefetch_lines<S: Simd, const VECTORS: usize>(pages: &[*const u8; VECTORS], at: usize, n_bytes: usize) {
    if at % LINE_BYTES < n_bytes {
        for page in pages {
            S::prefetch(page.wrapping_add(at));
        }
    }
}

/// Adds one column of keys times the rows' queries.
#[inline(always)]
unsafe fn add_column<S: Simd, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[S::F; VECTORS]; ROWS],
    k: &[S::F; VECTORS],
    q: *const f32,
    key_dim: usize,
) {
    // SAFETY: the caller vouches for `ROWS` rows of queries.
    unsafe {
        for row in 0..ROWS {
            let q = S::splat_f32(*q.add(row * key_dim));
            for v in 0..VECTORS {
                sums[row][v] = S::fma(k[v], q, sums[row][v]);
            }
        }
    }
}

//! [`RowScoresOf`]: products of queries and keys stored in their pages row by row, like values.
//!
//! Unlike in the kernel for keys stored column by column, a score is summed over the lanes of vectors.
//! Latent rows are stored so, since they are keys and values at once. Invariant: a score adds columns `i`,
//! `i + n`, .. in lane `i` of `n`, and then the lanes in order, whatever rows and keys go with it.

use crate::simd::{Kernel, Simd};

use super::{BLOCK_COLS, PAGE_LEN, SCALE_BYTES, SPLIT_TOKENS, Scores, page_types::PageType};

/// The number of keys that share the loads of a query.
const KEYS: usize = 4;

/// [`Scores`] for pages of one kind, whose keys are rows of `key_dim`, a multiple of [`PAGE_LEN`].
pub(super) struct RowScoresOf<'a, P> {
    run: Scores<'a>,
    page: std::marker::PhantomData<P>,
}

impl<'a, P: PageType> RowScoresOf<'a, P> {
    /// # Safety
    /// The contract of [`Scores`] holds, and rows are whole vectors.
    pub(super) unsafe fn new(run: Scores<'a>) -> Self {
        Self {
            run,
            page: std::marker::PhantomData,
        }
    }
}

impl<P: PageType> Kernel for RowScoresOf<'_, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = &self.run;
        for first_key in (0..run.keys.len() * PAGE_LEN).step_by(KEYS) {
            let mut row_idx = 0;
            while row_idx < run.n_rows {
                // SAFETY: the kernel's own contract; a page is a multiple of the keys that are taken together.
                unsafe {
                    row_idx += if run.n_rows - row_idx >= 2 {
                        scores_of::<S, P, 2>(run, row_idx, first_key)
                    } else {
                        scores_of::<S, P, 1>(run, row_idx, first_key)
                    };
                }
            }
        }
    }
}

/// Computes the scores of `ROWS` rows and [`KEYS`] keys; returns `ROWS`.
#[inline(always)]
unsafe fn scores_of<S: Simd, P: PageType, const ROWS: usize>(
    run: &Scores<'_>,
    row_idx: usize,
    first_key: usize,
) -> usize {
    let page = run.keys[first_key / PAGE_LEN].as_ptr();
    let first_lane = first_key % PAGE_LEN;
    // SAFETY: the caller's contract is that of `Scores`; keys and columns are inside their page.
    unsafe {
        let mut sums = [[S::splat_f32(0.0); KEYS]; ROWS];
        let mut scales = [0.0f32; PAGE_LEN];
        for col in (0..run.key_dim).step_by(S::LANES) {
            if P::HAS_SCALES && col % BLOCK_COLS == 0 {
                let block = page.add(col / BLOCK_COLS * P::BLOCK_BYTES);
                for half in 0..S::HALVES {
                    let scale = S::load_f16(block.add(2 * half * S::LANES));
                    S::store_f32(scales.as_mut_ptr().add(half * S::LANES), scale);
                }
            }
            let mut keys = [S::splat_f32(0.0); KEYS];
            for (i, key) in keys.iter_mut().enumerate() {
                let lane = first_lane + i;
                *key = if P::HAS_SCALES {
                    let block = page.add(col / BLOCK_COLS * P::BLOCK_BYTES + SCALE_BYTES);
                    let key = P::load::<S>(block, lane * BLOCK_COLS + col % BLOCK_COLS);
                    S::mul(key, S::splat_f32(scales[lane]))
                } else {
                    P::load::<S>(page, lane * run.key_dim + col)
                };
            }
            for row in 0..ROWS {
                let q = S::load_f32(run.q.add((row_idx + row) * run.key_dim + col));
                for i in 0..KEYS {
                    sums[row][i] = S::fma(keys[i], q, sums[row][i]);
                }
            }
        }
        for row in 0..ROWS {
            for i in 0..KEYS {
                let mut lanes = [0.0f32; PAGE_LEN];
                S::store_f32(lanes.as_mut_ptr(), sums[row][i]);
                let score = lanes[..S::LANES].iter().sum();
                *run.out.add((row_idx + row) * SPLIT_TOKENS + first_key + i) = score;
            }
        }
    }
    ROWS
}

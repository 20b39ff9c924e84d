//! Products of float tiles with rows of f32 activations.
//!
//! Invariant, the order of an output element's reduction: column `c` is added to sum `c % 4` with a fused multiply-add, and
//! the four sums are added as `(0 + 1) + (2 + 3)`; the same for any number of rows.

use crate::{
    reduction::{PREFETCH_BYTES, TileRun, sum_stride},
    simd::{Kernel, Simd, TILE_ROWS},
    tiles::FloatTile,
};

/// Products of tiles of one float format.
pub(crate) struct FloatProducts<'a, T> {
    run: &'a TileRun,
    tile: std::marker::PhantomData<T>,
}

impl<'a, T: FloatTile> FloatProducts<'a, T> {
    /// # Safety
    /// What [`TileRun`] says holds, and its tiles are packed in format `T`.
    pub(crate) unsafe fn new(run: &'a TileRun) -> Self {
        Self {
            run,
            tile: std::marker::PhantomData,
        }
    }
}

impl<T: FloatTile> Kernel for FloatProducts<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = *self.run;
        for tile_idx in 0..run.n_tiles {
            let mut row_idx = 0;
            while row_idx < run.n_rows {
                // SAFETY: the kernel's own contract; the parts stay inside what it describes.
                unsafe {
                    let part = TileRun {
                        tiles: run.tiles.add(tile_idx * run.tile_bytes),
                        x: run.x.add(row_idx * run.n_cols),
                        sums: run
                            .sums
                            .add(row_idx * sum_stride(run.n_tiles) + tile_idx * TILE_ROWS),
                        ..run
                    };
                    // Four sums for each row: as many as the registers hold.
                    row_idx += match run.n_rows - row_idx {
                        6.. if const { S::MAX_ROWS >= 6 } => FloatRows::<T, 6>::call::<S>(&part),
                        2.. => FloatRows::<T, 2>::call::<S>(&part),
                        _ => FloatRows::<T, 1>::call::<S>(&part),
                    };
                }
            }
        }
    }
}

/// One tile by `ROWS` rows.
struct FloatRows<'a, T, const ROWS: usize> {
    run: &'a TileRun,
    tile: std::marker::PhantomData<T>,
}

impl<'a, T: FloatTile, const ROWS: usize> FloatRows<'a, T, ROWS> {
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

impl<T: FloatTile, const ROWS: usize> Kernel for FloatRows<'_, T, ROWS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const CHAINS: usize = 4;
        let run = *self.run;
        // SAFETY: the kernel's own contract.
        unsafe {
            for half in 0..S::HALVES {
                let weights = run.tiles.add(half * S::LANES * T::VALUE_BYTES);
                let mut sums = [[S::splat_f32(0.0); ROWS]; CHAINS];
                let n_whole = run.n_cols / CHAINS * CHAINS;
                for first in (0..n_whole).step_by(CHAINS) {
                    for line in 0..CHAINS * TILE_ROWS * T::VALUE_BYTES / 64 {
                        let ahead = first * TILE_ROWS * T::VALUE_BYTES + PREFETCH_BYTES + 64 * line;
                        S::prefetch(weights.wrapping_add(ahead));
                    }
                    for chain in 0..CHAINS {
                        add_col::<S, T, ROWS>(run.x, run.n_cols, weights, first + chain, &mut sums[chain]);
                    }
                }
                for chain in 0..run.n_cols - n_whole {
                    add_col::<S, T, ROWS>(run.x, run.n_cols, weights, n_whole + chain, &mut sums[chain]);
                }
                for row in 0..ROWS {
                    let low = S::add(sums[0][row], sums[1][row]);
                    let high = S::add(sums[2][row], sums[3][row]);
                    let sums = run.sums.add(row * sum_stride(run.n_tiles) + half * S::LANES);
                    S::store_f32(sums, S::add(low, high));
                }
            }
        }
    }
}

/// Adds one column to a sum of each row. A function, not a closure: only functions can be made to be inlined always, which
/// the features depend on.
///
/// # Safety
/// `weights` points to a tile's vector of rows, `x` to `ROWS` rows of `n_cols`, and `col < n_cols`.
#[inline(always)]
unsafe fn add_col<S: Simd, T: FloatTile, const ROWS: usize>(
    x: *const f32,
    n_cols: usize,
    weights: *const u8,
    col: usize,
    sums: &mut [S::F; ROWS],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let w = T::weights::<S>(weights.add(col * TILE_ROWS * T::VALUE_BYTES));
        for row in 0..ROWS {
            sums[row] = S::fma(w, S::splat_f32(*x.add(row * n_cols + col)), sums[row]);
        }
    }
}

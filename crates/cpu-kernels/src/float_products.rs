//! Products of float tiles with rows of f32 activations.
//!
//! Invariant, the order of an output element's reduction: column `c` is added to sum `c % 4` with a fused
//! multiply-add, and the four sums are added as `(0 + 1) + (2 + 3)`; the same for any number of rows.

use crate::{
    reduction::{PREFETCH_BYTES, TileRun, sum_stride},
    simd::{Kernel, Simd, TILE_ROWS},
    tiles::FloatTile,
};

/// The products of tiles of one float format.
pub(crate) struct FloatProducts<'a, T, E> {
    run: &'a TileRun,
    end: E,
    tile: std::marker::PhantomData<T>,
}

impl<'a, T: FloatTile, E: End> FloatProducts<'a, T, E> {
    /// # Safety
    /// The contract of [`TileRun`] holds, and its tiles are packed in format `T`.
    pub(crate) unsafe fn new(run: &'a TileRun, end: E) -> Self {
        Self {
            run,
            end,
            tile: std::marker::PhantomData,
        }
    }
}

/// The use of a finished sum.
pub(crate) trait End: Copy {
    /// Whether weights are prefetched.
    const PREFETCHES: bool;

    /// Returns the value to write at `before`.
    ///
    /// # Safety
    /// The processor has the features of `S`, and `before` points to a vector of sums.
    unsafe fn value<S: Simd>(self, before: *const f32, sum: S::F) -> S::F;
}

/// Writes the sum.
#[derive(Clone, Copy)]
pub(crate) struct Write;

impl End for Write {
    const PREFETCHES: bool = true;

    #[inline(always)]
    unsafe fn value<S: Simd>(self, _: *const f32, sum: S::F) -> S::F {
        sum
    }
}

/// Multiplies the sum by a factor and adds it to the value in place. The weights were prefetched before
/// ([`Prefetch`]): these products run between others, which read so much that a prefetch far ahead would be
/// evicted before its use.
#[derive(Clone, Copy)]
pub(crate) struct AddScaled(pub(crate) f32);

impl End for AddScaled {
    const PREFETCHES: bool = false;

    #[inline(always)]
    unsafe fn value<S: Simd>(self, before: *const f32, sum: S::F) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::add(S::load_f32(before), S::mul(S::splat_f32(self.0), sum)) }
    }
}

impl<T: FloatTile, E: End> Kernel for FloatProducts<'_, T, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = *self.run;
        for tile_idx in 0..run.n_tiles {
            let mut row_idx = 0;
            while row_idx < run.n_rows {
                // SAFETY: the kernel's own contract; the parts stay inside the memory that it describes.
                unsafe {
                    let part = TileRun {
                        tiles: run.tiles.add(tile_idx * run.tile_bytes),
                        x: run.x.add(row_idx * run.n_cols),
                        sums: run
                            .sums
                            .add(row_idx * sum_stride(run.n_tiles) + tile_idx * TILE_ROWS),
                        ..run
                    };
                    // Each row has four sums: as many as there are registers for.
                    row_idx += match run.n_rows - row_idx {
                        6.. if const { S::MAX_ROWS >= 6 } => FloatRows::<T, E, 6>::call::<S>(&part, self.end),
                        2.. => FloatRows::<T, E, 2>::call::<S>(&part, self.end),
                        _ => FloatRows::<T, E, 1>::call::<S>(&part, self.end),
                    };
                }
            }
        }
    }
}

/// Prefetches bytes that will be read soon.
pub(crate) struct Prefetch<'a>(pub(crate) &'a [u8]);

impl Kernel for Prefetch<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for line in self.0.chunks(64) {
            S::prefetch(line.as_ptr());
        }
    }
}

/// The products of one tile and `ROWS` rows.
struct FloatRows<'a, T, E, const ROWS: usize> {
    run: &'a TileRun,
    end: E,
    tile: std::marker::PhantomData<T>,
}

impl<'a, T: FloatTile, E: End, const ROWS: usize> FloatRows<'a, T, E, ROWS> {
    /// Runs the kernel as a separate function, and returns `ROWS`.
    #[inline(always)]
    unsafe fn call<S: Simd>(run: &'a TileRun, end: E) -> usize {
        // SAFETY: the caller's contract is the kernel's.
        unsafe {
            S::call(Self {
                run,
                end,
                tile: std::marker::PhantomData,
            });
        }
        ROWS
    }
}

impl<T: FloatTile, E: End, const ROWS: usize> Kernel for FloatRows<'_, T, E, ROWS> {
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
                    let n_lines = CHAINS * TILE_ROWS * T::VALUE_BYTES / 64;
                    for line in 0..if E::PREFETCHES { n_lines } else { 0 } {
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
                    let out = run.sums.add(row * sum_stride(run.n_tiles) + half * S::LANES);
                    S::store_f32(out, self.end.value::<S>(out, S::add(low, high)));
                }
            }
        }
    }
}

/// Adds one column to a sum of each row. It is a function, not a closure: only functions can be forced
/// inline, which the features depend on.
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

//! [`TileF32`], [`TileF16`], [`TileBF16`]: weights that are floats.
//!
//! A tile is, for each column, the 16 rows' values. Their products take f32 activations, so that nothing is rounded but
//! the sums.

use crate::simd::{Simd, TILE_ROWS};

/// A float format's tiles.
pub(crate) trait FloatTile: 'static {
    /// Bytes of a value.
    const VALUE_BYTES: usize;

    /// Packs all columns of 16 rows.
    fn pack(rows: &[&[u8]; TILE_ROWS], out: &mut [u8]) {
        for (row_idx, row) in rows.iter().enumerate() {
            for (col, value) in row.chunks_exact(Self::VALUE_BYTES).enumerate() {
                let at = (col * TILE_ROWS + row_idx) * Self::VALUE_BYTES;
                out[at..at + Self::VALUE_BYTES].copy_from_slice(value);
            }
        }
    }

    /// The values of a vector's rows in one column.
    ///
    /// # Safety
    /// The features of `S` are there, and `ptr` points to `S::LANES` values.
    unsafe fn weights<S: Simd>(ptr: *const u8) -> S::F;
}

/// Single precision.
pub(crate) struct TileF32;
impl FloatTile for TileF32 {
    const VALUE_BYTES: usize = 4;

    #[inline(always)]
    unsafe fn weights<S: Simd>(ptr: *const u8) -> S::F {
        // SAFETY: the same contract.
        unsafe { S::from_bits(S::load(ptr)) }
    }
}

/// Half precision.
pub(crate) struct TileF16;
impl FloatTile for TileF16 {
    const VALUE_BYTES: usize = 2;

    #[inline(always)]
    unsafe fn weights<S: Simd>(ptr: *const u8) -> S::F {
        // SAFETY: the same contract.
        unsafe { S::load_f16(ptr) }
    }
}

/// The upper half of single precision.
pub(crate) struct TileBF16;
impl FloatTile for TileBF16 {
    const VALUE_BYTES: usize = 2;

    #[inline(always)]
    unsafe fn weights<S: Simd>(ptr: *const u8) -> S::F {
        // SAFETY: the same contract.
        unsafe { S::load_bf16(ptr) }
    }
}

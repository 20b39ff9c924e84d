//! [`FloatTile`]: weights that are floats.
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

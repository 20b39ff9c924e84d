//! [`FloatTile`]: weights that are floats.
//!
//! For each column, a tile has the values of the 16 rows. Their products take f32 activations, so that only
//! the sums are rounded.

use crate::simd::{Simd, TILE_ROWS};

/// The tiles of a float format.
pub(crate) trait FloatTile: 'static {
    /// The number of bytes of a value.
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

    /// Returns the values of a vector's rows in one column.
    ///
    /// # Safety
    /// The processor has the features of `S`, and `ptr` points to `S::LANES` values.
    unsafe fn weights<S: Simd>(ptr: *const u8) -> S::F;
}

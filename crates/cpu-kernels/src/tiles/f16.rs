//! F16: half precision.

use super::FloatTile;
use crate::simd::Simd;

/// Values of 2 bytes.
pub(crate) struct Tile;

impl FloatTile for Tile {
    const VALUE_BYTES: usize = 2;

    #[inline(always)]
    unsafe fn weights<S: Simd>(ptr: *const u8) -> S::F {
        // SAFETY: the same contract.
        unsafe { S::load_f16(ptr) }
    }
}

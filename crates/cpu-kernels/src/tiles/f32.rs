//! F32: single precision.

use super::FloatTile;
use crate::simd::Simd;

/// Values of 4 bytes.
pub(crate) struct Tile;

impl FloatTile for Tile {
    const VALUE_BYTES: usize = 4;

    #[inline(always)]
    unsafe fn weights<S: Simd>(ptr: *const u8) -> S::F {
        // SAFETY: the same contract.
        unsafe { S::from_bits(S::load(ptr)) }
    }
}

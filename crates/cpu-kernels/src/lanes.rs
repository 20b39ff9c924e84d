//! The lanes, as an array, of the vectors that cover a page or a tile.
//!
//! Softmax and the weights of values end with the largest lane. Invariant: there are 16, however wide a
//! vector is.

use crate::simd::{Simd, TILE_ROWS};

/// Returns the largest of the numbers, none of which is NaN. It compares halves, because each comparison of a
/// chain would wait for the one before.
#[inline(always)]
pub(crate) fn largest(mut lanes: [f32; TILE_ROWS]) -> f32 {
    let mut len = TILE_ROWS;
    while len > 1 {
        len /= 2;
        for i in 0..len {
            if lanes[i + len] > lanes[i] {
                lanes[i] = lanes[i + len];
            }
        }
    }
    lanes[0]
}

/// Returns the 16 lanes of the vectors that cover a page.
#[inline(always)]
pub(crate) unsafe fn lanes<S: Simd>(halves: [S::F; TILE_ROWS / 8]) -> [f32; TILE_ROWS] {
    let mut lanes = [0.0; TILE_ROWS];
    for half in 0..S::HALVES {
        // SAFETY: the vectors cover 16 lanes, and the caller vouches for the features.
        unsafe { S::store_f32(lanes.as_mut_ptr().add(half * S::LANES), halves[half]) };
    }
    lanes
}

//! Loads of vector registers from plain memory.
//!
//! They are the only memory accesses of the kernels. Invariant: the size of what is read is checked at compile time,
//! and no load needs alignment.

use std::arch::x86_64::{__m128i, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_loadu_si256};
use std::ptr;

use bytemuck::Pod;

/// Loads 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_256<T: Pod>(bytes: &T) -> __m256i {
    const { assert!(size_of::<T>() == 32) };
    // SAFETY: the reference is valid for the 32 bytes that are read; the load needs no alignment.
    unsafe { _mm256_loadu_si256(ptr::from_ref(bytes).cast()) }
}

/// Loads 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_128<T: Pod>(bytes: &T) -> __m128i {
    const { assert!(size_of::<T>() == 16) };
    // SAFETY: the reference is valid for the 16 bytes that are read; the load needs no alignment.
    unsafe { _mm_loadu_si128(ptr::from_ref(bytes).cast()) }
}

/// Loads 8 bytes into the lower half.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_64<T: Pod>(bytes: &T) -> __m128i {
    const { assert!(size_of::<T>() == 8) };
    // SAFETY: the reference is valid for the 8 bytes that are read; the load needs no alignment.
    unsafe { _mm_loadl_epi64(ptr::from_ref(bytes).cast()) }
}

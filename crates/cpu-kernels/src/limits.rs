//! The loops whose speed is a limit of the machine: reading memory, and multiplying bytes in registers.
//!
//! They use the same vector operations as the products, so that a limit is that of the instruction set in
//! use. Products of matrices ([`Simd::HAS_MATRIX`]) are not measured: with them products may be above the
//! limit.

use std::hint::black_box;

use tokenmill_quant::CpuFeatures;

use crate::simd::{Kernel, Simd, dispatch};

/// The number of vectors that are read or summed at once: enough to hide the latency of an addition or a
/// product.
const N_SUMS: usize = 16;

/// Reads bytes from end to end, except for a part of the last kilobyte.
pub fn read_bytes(features: CpuFeatures, bytes: &[u8]) {
    // SAFETY: the kernel's only claim is its slice.
    black_box(unsafe { dispatch(features, ReadBytes { bytes }) });
}

/// Multiplies bytes and sums the products, without memory accesses; returns the number of multiplications.
/// Each of the sums adds a vector of products `n_rounds` times.
pub fn multiply_bytes(features: CpuFeatures, n_rounds: usize) -> usize {
    // SAFETY: the kernel claims nothing.
    unsafe { dispatch(features, MultiplyBytes { n_rounds }) }
}

/// Returns a sum of the bytes, so that no read can be optimized away.
struct ReadBytes<'a> {
    bytes: &'a [u8],
}

impl Kernel for ReadBytes<'_> {
    type Output = i32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> i32 {
        let vector_bytes = 4 * S::LANES;
        // SAFETY: the caller vouches for the features.
        let mut sums = [unsafe { S::splat(0) }; N_SUMS];
        for chunk in self.bytes.chunks_exact(N_SUMS * vector_bytes) {
            for (vector_idx, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the chunk has `N_SUMS` vectors; the caller vouches for the features.
                *sum = unsafe { S::or(*sum, S::load(chunk.as_ptr().add(vector_idx * vector_bytes))) };
            }
        }
        // SAFETY: the caller vouches for the features.
        unsafe { lane_sum::<S>(&sums) }
    }
}

struct MultiplyBytes {
    n_rounds: usize,
}

impl Kernel for MultiplyBytes {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        // SAFETY: the caller vouches for the features, here and below.
        let (mut sums, a, b) = unsafe {
            (
                [S::splat(0); N_SUMS],
                S::splat_u8(black_box(3)),
                S::splat_u8(black_box(5)),
            )
        };
        for _ in 0..self.n_rounds {
            for sum in &mut sums {
                // SAFETY: as above.
                *sum = unsafe {
                    if S::CENTERS_WIDE {
                        S::dot_centered(*sum, a, b)
                    } else {
                        S::dot_u8::<true>(*sum, a, b)
                    }
                };
            }
        }
        // SAFETY: as above.
        black_box(unsafe { lane_sum::<S>(&sums) });
        self.n_rounds * N_SUMS * S::LANES * 4
    }
}

/// Returns the sum of all lanes, wrapping.
///
/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn lane_sum<S: Simd>(vectors: &[S::I; N_SUMS]) -> i32 {
    let mut total = 0i32;
    for &vector in vectors {
        let mut lanes = [0i32; 16];
        // SAFETY: no implementation has more than 16 lanes; the caller vouches for the features.
        unsafe { S::store(lanes.as_mut_ptr().cast(), vector) };
        total = lanes.iter().fold(total, |sum, lane| sum.wrapping_add(*lane));
    }
    total
}

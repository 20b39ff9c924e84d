//! [`two_to`] and [`mul_two_to`]: powers of two for vectors, from operations that every instruction set has.
//!
//! Instruction sets without an instruction for them use these functions. Invariant: like all operations of
//! [`Simd`], they compute the same bits everywhere.

use super::Simd;

/// Returns `2^n` for exponents of normal numbers.
///
/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn two_to<S: Simd>(n: S::I) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe { S::from_bits(S::shl32(S::add_i32(n, S::splat(127)), 23)) }
}

/// Computes [`Simd::mul_two_to`] by products.
///
/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
pub(super) unsafe fn mul_two_to<S: Simd>(a: S::F, n: S::I) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe {
        // 2^n in two factors, so that neither leaves the range of normal numbers.
        let half = S::sub_i32(S::shr32(S::add_i32(n, S::splat(256)), 1), S::splat(128));
        let rest = S::sub_i32(n, half);
        S::mul(S::mul(a, two_to::<S>(half)), two_to::<S>(rest))
    }
}

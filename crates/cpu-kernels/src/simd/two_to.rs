//! [`two_to`] and [`mul_two_to`]: powers of two for vectors, of operations that every instruction set has.
//!
//! Separate from the functions of values because instruction sets without an instruction for it are made of them. Invariant: as all
//! operations of [`Simd`], they compute the same bits everywhere.

use super::Simd;

/// `2^n` for exponents of normal numbers.
///
/// # Safety
/// The features of `S` are there.
#[inline(always)]
pub(crate) unsafe fn two_to<S: Simd>(n: S::I) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe { S::from_bits(S::shl32(S::add_i32(n, S::splat(127)), 23)) }
}

/// [`Simd::mul_two_to`] by products.
///
/// # Safety
/// The features of `S` are there.
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

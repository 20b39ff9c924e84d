//! The kernels for AVX2: bytes are multiplied in pairs to 16 bits, then to 32.

use std::arch::x86_64::{__m256i, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi16};

/// Multiplies unsigned by signed bytes and adds each four products into 32-bit lanes. Two products must fit in 16
/// bits, which 0..=128 times -127..=127 do.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_u8_i8(unsigned: __m256i, signed: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned, signed), _mm256_set1_epi16(1))
}

kernels!("avx2,fma,f16c");

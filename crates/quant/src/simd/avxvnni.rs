//! The kernels for AVX-VNNI: one instruction multiplies bytes and adds each four products.

use std::arch::x86_64::{__m256i, _mm256_dpbusd_avx_epi32, _mm256_setzero_si256};

/// Multiplies unsigned by signed bytes and adds each four products into 32-bit lanes.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn dot_u8_i8(unsigned: __m256i, signed: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), unsigned, signed)
}

kernels!("avx2,fma,f16c,avxvnni");

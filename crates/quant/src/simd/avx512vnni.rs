//! The kernels for AVX-512 VNNI, on 256-bit registers: a group of 32 weights fills one.

use std::arch::x86_64::{__m256i, _mm256_dpbusd_epi32, _mm256_setzero_si256};

/// Multiplies unsigned by signed bytes and adds each four products into 32-bit lanes.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512vl,avx512vnni")]
fn dot_u8_i8(unsigned: __m256i, signed: __m256i) -> __m256i {
    _mm256_dpbusd_epi32(_mm256_setzero_si256(), unsigned, signed)
}

kernels!("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni");

//! [`Avx512`]: 16 lanes, with VNNI.
//!
//! Each method is one or two instructions; the features are those of [`tokenmill_quant::Isa::Avx512Vnni`].

use std::arch::{
    asm,
    x86_64::{
        __m128i, __m256i, __m512, __m512i, _MM_HINT_T0, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_prefetch,
        _mm_storeu_si128, _mm256_and_si256, _mm256_cmpeq_epi16, _mm256_cvtepu8_epi16, _mm256_loadu_si256,
        _mm256_or_si256, _mm256_set1_epi16, _mm256_slli_epi16, _mm256_storeu_si256, _mm512_add_epi32,
        _mm512_add_ps, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_castsi512_ps, _mm512_cvtepi8_epi16,
        _mm512_cvtepi8_epi32, _mm512_cvtepi32_epi8, _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps,
        _mm512_cvtepu8_epi16, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
        _mm512_cvtps_epi32, _mm512_div_ps, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_fmadd_ps,
        _mm512_loadu_ps, _mm512_loadu_si512, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_or_si512,
        _mm512_scalef_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_shuffle_epi8,
        _mm512_sll_epi16, _mm512_sll_epi32, _mm512_slli_epi32, _mm512_srl_epi16, _mm512_srl_epi32,
        _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_epi32, _mm512_sub_ps,
    },
};

use super::{Kernel, Simd};

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all: the caller vouches for the features and pointers, see `Simd`"
)]
impl Simd for Avx512 {
    const LANES: usize = 16;
    const MAX_ROWS: usize = 6;
    const MAX_DIRECT_ROWS: usize = 8;
    type I = __m512i;
    type F = __m512;

    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn enabled<K: Kernel>(kernel: K) -> K::Output {
            unsafe { kernel.run::<Avx512>() }
        }
        unsafe { enabled(kernel) }
    }

    #[inline(always)]
    unsafe fn settle(a: __m512) {
        #[inline]
        #[target_feature(enable = "avx512f")]
        fn settle(a: __m512) {
            // Without `nomem` the compiler assumes that it may access memory, so loads do not move across it.
            // SAFETY: there is no instruction.
            unsafe { asm!("/* {0} */", in(zmm_reg) a, options(nostack, preserves_flags)) }
        }
        unsafe { settle(a) }
    }

    #[inline(always)]
    fn prefetch(ptr: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr.cast()) }
    }

    #[inline(always)]
    unsafe fn load(ptr: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(ptr.cast()) }
    }

    #[inline(always)]
    unsafe fn store(ptr: *mut u8, a: __m512i) {
        unsafe { _mm512_storeu_si512(ptr.cast(), a) }
    }

    #[inline(always)]
    unsafe fn store_low_bytes(ptr: *mut i8, a: __m512i) {
        unsafe { _mm_storeu_si128(ptr.cast::<__m128i>(), _mm512_cvtepi32_epi8(a)) }
    }

    #[inline(always)]
    unsafe fn splat(a: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(a) }
    }

    #[inline(always)]
    unsafe fn splat_u8(a: u8) -> __m512i {
        unsafe { _mm512_set1_epi8(a as i8) }
    }

    #[inline(always)]
    unsafe fn load_splat(ptr: *const u8) -> __m512i {
        unsafe { _mm512_set1_epi32(ptr.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_u8(ptr: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(ptr.cast::<__m128i>())) }
    }

    #[inline(always)]
    unsafe fn load_i8(ptr: *const u8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(ptr.cast::<__m128i>())) }
    }

    #[inline(always)]
    unsafe fn load_u8_pairs(ptr: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(ptr.cast::<__m256i>())) }
    }

    #[inline(always)]
    unsafe fn load_i8_pairs(ptr: *const u8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(ptr.cast::<__m256i>())) }
    }

    #[inline(always)]
    unsafe fn store_low_halves(ptr: *mut i16, a: __m512i) {
        unsafe { _mm256_storeu_si256(ptr.cast::<__m256i>(), _mm512_cvtepi32_epi16(a)) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: __m512i) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }

    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn shr16(a: __m512i, n_bits: u32) -> __m512i {
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(n_bits as i32)) }
    }

    #[inline(always)]
    unsafe fn shl16(a: __m512i, n_bits: u32) -> __m512i {
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(n_bits as i32)) }
    }

    #[inline(always)]
    unsafe fn shl32(a: __m512i, n_bits: u32) -> __m512i {
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(n_bits as i32)) }
    }

    #[inline(always)]
    unsafe fn shr32(a: __m512i, n_bits: u32) -> __m512i {
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(n_bits as i32)) }
    }

    #[inline(always)]
    unsafe fn add_i32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn sub_i32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn dot_u8<const IS_WIDE: bool>(acc: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, unsigned, signed) }
    }

    #[inline(always)]
    unsafe fn dot_i16(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_dpwssd_epi32(acc, a, b) }
    }

    #[inline(always)]
    unsafe fn dot_i16_of_many(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        #[inline]
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn dot(mut acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: an instruction on registers.
            unsafe {
                asm!(
                    "vpdpwssd {0}, {1}, {2}",
                    inout(zmm_reg) acc,
                    in(zmm_reg) a,
                    in(zmm_reg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            acc
        }
        unsafe { dot(acc, a, b) }
    }

    #[inline(always)]
    unsafe fn to_f32(a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    unsafe fn to_i32(a: __m512) -> __m512i {
        unsafe { _mm512_cvtps_epi32(a) }
    }

    #[inline(always)]
    unsafe fn from_bits(a: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(a) }
    }

    #[inline(always)]
    unsafe fn load_f32(ptr: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(ptr) }
    }

    #[inline(always)]
    unsafe fn store_f32(ptr: *mut f32, a: __m512) {
        unsafe { _mm512_storeu_ps(ptr, a) }
    }

    #[inline(always)]
    unsafe fn load_f16(ptr: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(ptr.cast::<__m256i>())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(ptr: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(ptr.cast::<__m256i>()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3(ptr: *const u8) -> __m512 {
        // Computed as f16, whose exponent bias is larger by 8.
        unsafe {
            let wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(ptr.cast::<__m128i>()));
            let sign = _mm256_and_si256(_mm256_slli_epi16::<8>(wide), _mm256_set1_epi16(i16::MIN));
            let largest = _mm256_set1_epi16(0x3f80);
            let magnitude = _mm256_and_si256(_mm256_slli_epi16::<7>(wide), largest);
            // The largest magnitude is NaN: with this bit it is a NaN in f16 too.
            let none = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, largest), _mm256_set1_epi16(0x4000));
            let halves = _mm256_or_si256(_mm256_or_si256(sign, magnitude), none);
            _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
        }
    }

    #[inline(always)]
    unsafe fn splat_f32(a: f32) -> __m512 {
        unsafe { _mm512_set1_ps(a) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_two_to(a: __m512, n: __m512i) -> __m512 {
        unsafe { _mm512_scalef_ps(a, _mm512_cvtepi32_ps(n)) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
}

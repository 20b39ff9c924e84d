//! [`Avx2`]: 8 lanes, with or without AVX-VNNI.
//!
//! Each method is a few instructions; the features are those of [`tokenmill_quant::Isa::Avx2`] and, with `HAS_VNNI`,
//! [`tokenmill_quant::Isa::AvxVnni`].

use std::arch::{
    asm,
    x86_64::{
        __m128i, __m256, __m256i, _MM_HINT_T0, _mm_and_si128, _mm_cmpeq_epi16, _mm_cvtepu8_epi16,
        _mm_cvtsi32_si128, _mm_loadl_epi64, _mm_loadu_si128, _mm_or_si128, _mm_packus_epi16, _mm_prefetch,
        _mm_set1_epi16, _mm_slli_epi16, _mm_storel_epi64, _mm_storeu_si128, _mm256_add_epi32, _mm256_add_ps,
        _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
        _mm256_cvtepi8_epi16, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16,
        _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_div_ps,
        _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_or_si256,
        _mm256_packs_epi32, _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi8,
        _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_shuffle_epi8, _mm256_sll_epi16,
        _mm256_sll_epi32, _mm256_slli_epi32, _mm256_srl_epi16, _mm256_srl_epi32, _mm256_storeu_ps,
        _mm256_storeu_si256, _mm256_sub_epi32, _mm256_sub_ps, _mm256_xor_si256,
    },
};

use super::{Kernel, Simd, two_to};

/// AVX2, FMA and F16C; with `HAS_VNNI` also the 256-bit integer dot products.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const HAS_VNNI: bool>;

#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all: the caller vouches for the features and pointers, see `Simd`"
)]
impl<const HAS_VNNI: bool> Simd for Avx2<HAS_VNNI> {
    const LANES: usize = 8;
    const MAX_ROWS: usize = 4;
    const MAX_DIRECT_ROWS: usize = 4;
    type I = __m256i;
    type F = __m256;

    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn enabled<K: Kernel>(kernel: K) -> K::Output {
            unsafe { kernel.run::<Avx2<false>>() }
        }
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        unsafe fn enabled_vnni<K: Kernel>(kernel: K) -> K::Output {
            unsafe { kernel.run::<Avx2<true>>() }
        }
        if HAS_VNNI {
            unsafe { enabled_vnni(kernel) }
        } else {
            unsafe { enabled(kernel) }
        }
    }

    #[inline(always)]
    unsafe fn settle(a: __m256) {
        #[inline]
        #[target_feature(enable = "avx")]
        fn settle(a: __m256) {
            // Without `nomem` the compiler assumes that it may access memory, so loads do not move across it.
            // SAFETY: there is no instruction.
            unsafe { asm!("/* {0} */", in(ymm_reg) a, options(nostack, preserves_flags)) }
        }
        unsafe { settle(a) }
    }

    #[inline(always)]
    fn prefetch(ptr: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr.cast()) }
    }

    #[inline(always)]
    unsafe fn load(ptr: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(ptr.cast()) }
    }

    #[inline(always)]
    unsafe fn store(ptr: *mut u8, a: __m256i) {
        unsafe { _mm256_storeu_si256(ptr.cast(), a) }
    }

    #[inline(always)]
    unsafe fn store_low_bytes(ptr: *mut i8, a: __m256i) {
        unsafe {
            // Packing saturates, so the bits above the byte must be cleared.
            let low = _mm256_and_si256(a, _mm256_set1_epi32(0xff));
            let words = _mm256_packus_epi32(low, low);
            let words = _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(words));
            _mm_storel_epi64(ptr.cast::<__m128i>(), _mm_packus_epi16(words, words));
        }
    }

    #[inline(always)]
    unsafe fn splat(a: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(a) }
    }

    #[inline(always)]
    unsafe fn splat_u8(a: u8) -> __m256i {
        unsafe { _mm256_set1_epi8(a as i8) }
    }

    #[inline(always)]
    unsafe fn load_splat(ptr: *const u8) -> __m256i {
        unsafe { _mm256_set1_epi32(ptr.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_u8(ptr: *const u8) -> __m256i {
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(ptr.cast::<__m128i>())) }
    }

    #[inline(always)]
    unsafe fn load_i8(ptr: *const u8) -> __m256i {
        unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(ptr.cast::<__m128i>())) }
    }

    #[inline(always)]
    unsafe fn load_u8_pairs(ptr: *const u8) -> __m256i {
        unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(ptr.cast::<__m128i>())) }
    }

    #[inline(always)]
    unsafe fn load_i8_pairs(ptr: *const u8) -> __m256i {
        unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(ptr.cast::<__m128i>())) }
    }

    #[inline(always)]
    unsafe fn store_low_halves(ptr: *mut i16, a: __m256i) {
        unsafe {
            // The two quarters that matter are the lowest of each half.
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packs_epi32(a, a));
            _mm_storeu_si128(ptr.cast::<__m128i>(), _mm256_castsi256_si128(packed));
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: __m256i) -> __m256i {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, indices)
        }
    }

    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn shr16(a: __m256i, n_bits: u32) -> __m256i {
        unsafe { _mm256_srl_epi16(a, _mm_cvtsi32_si128(n_bits as i32)) }
    }

    #[inline(always)]
    unsafe fn shl16(a: __m256i, n_bits: u32) -> __m256i {
        unsafe { _mm256_sll_epi16(a, _mm_cvtsi32_si128(n_bits as i32)) }
    }

    #[inline(always)]
    unsafe fn shl32(a: __m256i, n_bits: u32) -> __m256i {
        unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(n_bits as i32)) }
    }

    #[inline(always)]
    unsafe fn shr32(a: __m256i, n_bits: u32) -> __m256i {
        unsafe { _mm256_srl_epi32(a, _mm_cvtsi32_si128(n_bits as i32)) }
    }

    #[inline(always)]
    unsafe fn add_i32(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn sub_i32(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn dot_u8<const IS_WIDE: bool>(acc: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        unsafe {
            if HAS_VNNI {
                return _mm256_dpbusd_avx_epi32(acc, unsigned, signed);
            }
            let ones = _mm256_set1_epi16(1);
            if IS_WIDE {
                // Products of bytes above 128 could saturate the 16-bit sums, so the top bit is multiplied
                // separately.
                let top = _mm256_and_si256(unsigned, _mm256_set1_epi8(i8::MIN));
                let low = _mm256_xor_si256(unsigned, top);
                let sum = _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(top, signed), ones));
                _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(low, signed), ones))
            } else {
                _mm256_add_epi32(
                    acc,
                    _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned, signed), ones),
                )
            }
        }
    }

    #[inline(always)]
    unsafe fn dot_i16(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    unsafe fn to_f32(a: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(a) }
    }

    #[inline(always)]
    unsafe fn to_i32(a: __m256) -> __m256i {
        unsafe { _mm256_cvtps_epi32(a) }
    }

    #[inline(always)]
    unsafe fn from_bits(a: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(a) }
    }

    #[inline(always)]
    unsafe fn load_f32(ptr: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(ptr) }
    }

    #[inline(always)]
    unsafe fn store_f32(ptr: *mut f32, a: __m256) {
        unsafe { _mm256_storeu_ps(ptr, a) }
    }

    #[inline(always)]
    unsafe fn load_f16(ptr: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(ptr.cast::<__m128i>())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(ptr: *const u8) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(ptr.cast::<__m128i>()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3(ptr: *const u8) -> __m256 {
        // Computed as f16, whose exponent bias is larger by 8.
        unsafe {
            let wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(ptr.cast::<__m128i>()));
            let sign = _mm_and_si128(_mm_slli_epi16::<8>(wide), _mm_set1_epi16(i16::MIN));
            let largest = _mm_set1_epi16(0x3f80);
            let magnitude = _mm_and_si128(_mm_slli_epi16::<7>(wide), largest);
            // The largest magnitude is NaN: with this bit it is a NaN in f16 too.
            let none = _mm_and_si128(_mm_cmpeq_epi16(magnitude, largest), _mm_set1_epi16(0x4000));
            let halves = _mm_or_si128(_mm_or_si128(sign, magnitude), none);
            _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0))
        }
    }

    #[inline(always)]
    unsafe fn splat_f32(a: f32) -> __m256 {
        unsafe { _mm256_set1_ps(a) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_two_to(a: __m256, n: __m256i) -> __m256 {
        unsafe { two_to::mul_two_to::<Self>(a, n) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
}

//! [`Neon`]: 8 lanes in two registers, with or without dot products and products of matrices.
//!
//! Each method is a few instructions for each register. The features are those of
//! [`tokenmill_quant::Isa::Neon`], with `HAS_DOT` of [`tokenmill_quant::Isa::Dotprod`], and with `HAS_MATRIX`
//! of [`tokenmill_quant::Isa::I8mm`]. Instructions without intrinsics in stable Rust (`sdot`, `usdot`,
//! `usmmla`, `prfm`), or with intrinsics only in recent versions (`fcvtl`), are written in assembly.
//!
//! Products without `usdot` take signed bytes on both sides, so bytes above 127 do not fit. Formats with such
//! bytes are biased by 128: flipping the top bit subtracts the bias ([`Simd::CENTERS_WIDE`]).
//!
//! Source: Arm Architecture Reference Manual for A-profile architecture, C7 (A64 Advanced SIMD instructions).

use std::arch::{
    aarch64::{
        float32x4_t, int8x16_t, int32x4_t, uint8x16_t, uint16x8_t, vaddq_f32, vaddq_s32, vandq_s32,
        vbslq_f32, vbslq_s32, vcgtq_f32, vcltq_f32, vcombine_s8, vcombine_s16, vcvtnq_s32_f32, vcvtq_f32_s32,
        vdivq_f32, vdupq_n_f32, vdupq_n_s16, vdupq_n_s32, vdupq_n_u8, veorq_s32, vfmaq_f32, vget_low_s8,
        vget_low_s16, vget_low_u8, vget_low_u16, vld1_s8, vld1_u8, vld1q_f32, vld1q_s8, vld1q_u8,
        vmovl_high_s8, vmovl_high_s16, vmovl_high_u8, vmovl_high_u16, vmovl_s8, vmovl_s16, vmovl_u8,
        vmovl_u16, vmovn_s16, vmovn_s32, vmull_high_s8, vmull_high_s16, vmull_s8, vmull_s16, vmulq_f32,
        vorrq_s32, vpadalq_s16, vpaddq_s16, vpaddq_s32, vqtbl1q_u8, vreinterpretq_f32_s32,
        vreinterpretq_f32_u32, vreinterpretq_s8_s32, vreinterpretq_s16_s32, vreinterpretq_s32_s16,
        vreinterpretq_s32_u8, vreinterpretq_s32_u16, vreinterpretq_s32_u32, vreinterpretq_u8_s32,
        vreinterpretq_u16_s32, vreinterpretq_u16_u8, vreinterpretq_u32_s32, vshll_high_n_u16, vshll_n_u16,
        vshlq_u16, vshlq_u32, vst1_s8, vst1q_f32, vst1q_s16, vst1q_u8, vsubq_f32, vsubq_s32, vuzp1q_s32,
        vuzp2q_s32, vzip1q_s32, vzip2q_s32,
    },
    asm,
};

use super::{Kernel, Simd, two_to};

/// Advanced SIMD; with `HAS_DOT` also dot products of bytes, with `HAS_MATRIX` those of bytes of different
/// signs and products of matrices of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const HAS_DOT: bool, const HAS_MATRIX: bool>;

type I = [int32x4_t; 2];
type F = [float32x4_t; 2];

/// Returns `acc + Σ a * b` over the four bytes of a lane, both signed.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) acc, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Returns `acc + Σ unsigned * signed` over the four bytes of a lane.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn usdot(acc: int32x4_t, unsigned: uint8x16_t, signed: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("usdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) acc, in(vreg) unsigned, in(vreg) signed,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Adds the product of two rows of eight unsigned bytes and two columns of eight signed bytes to `acc`, `[2, 2]`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn usmmla(acc: int32x4_t, unsigned: uint8x16_t, signed: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("usmmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) acc, in(vreg) unsigned, in(vreg) signed,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Converts half-precision values to f32.
#[inline]
#[target_feature(enable = "neon")]
fn widen_f16(a: uint16x8_t) -> F {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: instructions on registers.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) low, in(vreg) a, options(pure, nomem, nostack, preserves_flags));
        asm!("fcvtl2 {0:v}.4s, {1:v}.8h", out(vreg) high, in(vreg) a, options(pure, nomem, nostack, preserves_flags));
    }
    [low, high]
}

/// Returns `acc + Σ a * b` over the four bytes of a lane, both signed and not both -128, without an
/// instruction for it: the sum of two products fits in 16 bits.
#[inline(always)]
unsafe fn dot_of_products(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(a, b)))
    }
}

/// Shifts each 16-bit part left, or right if `n_bits` is negative, with zeros shifted in.
#[inline(always)]
unsafe fn shift16(a: I, n_bits: i16) -> I {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let n_bits = vdupq_n_s16(n_bits);
        [
            vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(a[0]), n_bits)),
            vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(a[1]), n_bits)),
        ]
    }
}

/// Shifts each lane left, or right if `n_bits` is negative, with zeros shifted in.
#[inline(always)]
unsafe fn shift32(a: I, n_bits: i32) -> I {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let n_bits = vdupq_n_s32(n_bits);
        [
            vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a[0]), n_bits)),
            vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a[1]), n_bits)),
        ]
    }
}

/// Converts f32 to integers; values that do not fit become the least. The instruction does this only for
/// small values.
#[inline(always)]
unsafe fn round(a: float32x4_t) -> int32x4_t {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let fits = vcltq_f32(a, vdupq_n_f32(2_147_483_648.0));
        vbslq_s32(fits, vcvtnq_s32_f32(a), vdupq_n_s32(i32::MIN))
    }
}

/// Returns the bytes of two vectors as signed bytes.
#[inline(always)]
unsafe fn bytes(a: I) -> [int8x16_t; 2] {
    // SAFETY: the caller vouches for the features.
    unsafe { [vreinterpretq_s8_s32(a[0]), vreinterpretq_s8_s32(a[1])] }
}

#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all: the caller vouches for the features and pointers, see `Simd`"
)]
impl<const HAS_DOT: bool, const HAS_MATRIX: bool> Simd for Neon<HAS_DOT, HAS_MATRIX> {
    const LANES: usize = 8;
    const MAX_ROWS: usize = 4;
    const MAX_DIRECT_ROWS: usize = 4;
    const CENTERS_WIDE: bool = !HAS_MATRIX;
    const HAS_MATRIX: bool = HAS_MATRIX;
    type I = I;
    type F = F;

    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "neon")]
        unsafe fn enabled<K: Kernel>(kernel: K) -> K::Output {
            unsafe { kernel.run::<Neon<false, false>>() }
        }
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod")]
        unsafe fn enabled_dot<K: Kernel>(kernel: K) -> K::Output {
            unsafe { kernel.run::<Neon<true, false>>() }
        }
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod,i8mm")]
        unsafe fn enabled_matrix<K: Kernel>(kernel: K) -> K::Output {
            unsafe { kernel.run::<Neon<true, true>>() }
        }
        if HAS_MATRIX {
            unsafe { enabled_matrix(kernel) }
        } else if HAS_DOT {
            unsafe { enabled_dot(kernel) }
        } else {
            unsafe { enabled(kernel) }
        }
    }

    #[inline(always)]
    unsafe fn settle(a: F) {
        // Without `nomem` the compiler assumes that it may access memory, so loads do not move across it.
        unsafe {
            asm!("/* {0:v} {1:v} */", in(vreg) a[0], in(vreg) a[1], options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn prefetch(ptr: *const u8) {
        // SAFETY: a hint, which may name any address.
        unsafe {
            asm!("prfm pldl1keep, [{0}]", in(reg) ptr, options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load(ptr: *const u8) -> I {
        unsafe {
            [
                vreinterpretq_s32_u8(vld1q_u8(ptr)),
                vreinterpretq_s32_u8(vld1q_u8(ptr.add(16))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(ptr: *mut u8, a: I) {
        unsafe {
            vst1q_u8(ptr, vreinterpretq_u8_s32(a[0]));
            vst1q_u8(ptr.add(16), vreinterpretq_u8_s32(a[1]));
        }
    }

    #[inline(always)]
    unsafe fn store_low_bytes(ptr: *mut i8, a: I) {
        unsafe {
            let words = vcombine_s16(vmovn_s32(a[0]), vmovn_s32(a[1]));
            vst1_s8(ptr, vmovn_s16(words));
        }
    }

    #[inline(always)]
    unsafe fn splat(a: i32) -> I {
        unsafe { [vdupq_n_s32(a); 2] }
    }

    #[inline(always)]
    unsafe fn splat_u8(a: u8) -> I {
        unsafe { [vreinterpretq_s32_u8(vdupq_n_u8(a)); 2] }
    }

    #[inline(always)]
    unsafe fn load_splat(ptr: *const u8) -> I {
        unsafe { [vdupq_n_s32(ptr.cast::<i32>().read_unaligned()); 2] }
    }

    #[inline(always)]
    unsafe fn load_u8(ptr: *const u8) -> I {
        unsafe {
            let words = vmovl_u8(vld1_u8(ptr));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words))),
                vreinterpretq_s32_u32(vmovl_high_u16(words)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_i8(ptr: *const u8) -> I {
        unsafe {
            let words = vmovl_s8(vld1_s8(ptr.cast()));
            [vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)]
        }
    }

    #[inline(always)]
    unsafe fn load_u8_pairs(ptr: *const u8) -> I {
        unsafe {
            let bytes = vld1q_u8(ptr);
            [
                vreinterpretq_s32_u16(vmovl_u8(vget_low_u8(bytes))),
                vreinterpretq_s32_u16(vmovl_high_u8(bytes)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_i8_pairs(ptr: *const u8) -> I {
        unsafe {
            let bytes = vld1q_s8(ptr.cast());
            [
                vreinterpretq_s32_s16(vmovl_s8(vget_low_s8(bytes))),
                vreinterpretq_s32_s16(vmovl_high_s8(bytes)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_low_halves(ptr: *mut i16, a: I) {
        unsafe { vst1q_s16(ptr, vcombine_s16(vmovn_s32(a[0]), vmovn_s32(a[1]))) }
    }

    #[inline(always)]
    unsafe fn and(a: I, b: I) -> I {
        unsafe { [vandq_s32(a[0], b[0]), vandq_s32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn or(a: I, b: I) -> I {
        unsafe { [vorrq_s32(a[0], b[0]), vorrq_s32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: I) -> I {
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            [
                vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(indices[0]))),
                vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(indices[1]))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn shr16(a: I, n_bits: u32) -> I {
        unsafe { shift16(a, -(n_bits as i16)) }
    }

    #[inline(always)]
    unsafe fn shl16(a: I, n_bits: u32) -> I {
        unsafe { shift16(a, n_bits as i16) }
    }

    #[inline(always)]
    unsafe fn shl32(a: I, n_bits: u32) -> I {
        unsafe { shift32(a, n_bits as i32) }
    }

    #[inline(always)]
    unsafe fn shr32(a: I, n_bits: u32) -> I {
        unsafe { shift32(a, -(n_bits as i32)) }
    }

    #[inline(always)]
    unsafe fn add_i32(a: I, b: I) -> I {
        unsafe { [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn sub_i32(a: I, b: I) -> I {
        unsafe { [vsubq_s32(a[0], b[0]), vsubq_s32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn dot_u8<const IS_WIDE: bool>(acc: I, unsigned: I, signed: I) -> I {
        unsafe {
            if HAS_MATRIX {
                let x = bytes(signed);
                return [
                    usdot(acc[0], vreinterpretq_u8_s32(unsigned[0]), x[0]),
                    usdot(acc[1], vreinterpretq_u8_s32(unsigned[1]), x[1]),
                ];
            }
            if IS_WIDE {
                // `dot_centered` subtracted the bias; these products add it back: 64 times the bytes, twice.
                let half_bias = Self::splat_u8(64);
                let acc = Self::dot_centered(acc, unsigned, signed);
                let acc = Self::dot_u8::<false>(acc, half_bias, signed);
                return Self::dot_u8::<false>(acc, half_bias, signed);
            }
            let (a, b) = (bytes(unsigned), bytes(signed));
            if HAS_DOT {
                [sdot(acc[0], a[0], b[0]), sdot(acc[1], a[1], b[1])]
            } else {
                [
                    dot_of_products(acc[0], a[0], b[0]),
                    dot_of_products(acc[1], a[1], b[1]),
                ]
            }
        }
    }

    #[inline(always)]
    unsafe fn dot_centered(acc: I, biased: I, signed: I) -> I {
        unsafe {
            let top = vreinterpretq_s32_u8(vdupq_n_u8(0x80));
            let centered = [veorq_s32(biased[0], top), veorq_s32(biased[1], top)];
            Self::dot_u8::<false>(acc, centered, signed)
        }
    }

    #[inline(always)]
    unsafe fn zip32(a: I, b: I) -> [I; 2] {
        unsafe {
            [
                [vzip1q_s32(a[0], b[0]), vzip2q_s32(a[0], b[0])],
                [vzip1q_s32(a[1], b[1]), vzip2q_s32(a[1], b[1])],
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot_eights(acc: [I; 2], weights: [I; 2], x: [*const u8; 2]) -> [I; 2] {
        unsafe {
            let x = [vld1_s8(x[0].cast()), vld1_s8(x[1].cast())];
            let x = vcombine_s8(x[0], x[1]);
            let mut acc = acc;
            for half in 0..2 {
                for i in 0..2 {
                    acc[half][i] = usmmla(acc[half][i], vreinterpretq_u8_s32(weights[half][i]), x);
                }
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn unzip32(a: [I; 2]) -> [I; 2] {
        unsafe {
            [
                [vuzp1q_s32(a[0][0], a[0][1]), vuzp1q_s32(a[1][0], a[1][1])],
                [vuzp2q_s32(a[0][0], a[0][1]), vuzp2q_s32(a[1][0], a[1][1])],
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot_i16(acc: I, a: I, b: I) -> I {
        unsafe {
            let mut acc = acc;
            for i in 0..2 {
                let (a, b) = (vreinterpretq_s16_s32(a[i]), vreinterpretq_s16_s32(b[i]));
                let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
                acc[i] = vaddq_s32(acc[i], vpaddq_s32(low, vmull_high_s16(a, b)));
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn to_f32(a: I) -> F {
        unsafe { [vcvtq_f32_s32(a[0]), vcvtq_f32_s32(a[1])] }
    }

    #[inline(always)]
    unsafe fn to_i32(a: F) -> I {
        unsafe { [round(a[0]), round(a[1])] }
    }

    #[inline(always)]
    unsafe fn from_bits(a: I) -> F {
        unsafe { [vreinterpretq_f32_s32(a[0]), vreinterpretq_f32_s32(a[1])] }
    }

    #[inline(always)]
    unsafe fn load_f32(ptr: *const f32) -> F {
        unsafe { [vld1q_f32(ptr), vld1q_f32(ptr.add(4))] }
    }

    #[inline(always)]
    unsafe fn store_f32(ptr: *mut f32, a: F) {
        unsafe {
            vst1q_f32(ptr, a[0]);
            vst1q_f32(ptr.add(4), a[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(ptr: *const u8) -> F {
        unsafe { widen_f16(vreinterpretq_u16_u8(vld1q_u8(ptr))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(ptr: *const u8) -> F {
        unsafe {
            let bits = vreinterpretq_u16_u8(vld1q_u8(ptr));
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(bits))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(bits)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn splat_f32(a: f32) -> F {
        unsafe { [vdupq_n_f32(a); 2] }
    }

    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul_two_to(a: F, n: I) -> F {
        unsafe { two_to::mul_two_to::<Self>(a, n) }
    }

    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        unsafe { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        unsafe { [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        unsafe { [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])] }
    }

    // The instructions for minima and maxima return NaN if either operand is NaN, so these methods compare
    // and select.

    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        unsafe {
            [
                vbslq_f32(vcgtq_f32(a[0], b[0]), a[0], b[0]),
                vbslq_f32(vcgtq_f32(a[1], b[1]), a[1], b[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        unsafe {
            [
                vbslq_f32(vcltq_f32(a[0], b[0]), a[0], b[0]),
                vbslq_f32(vcltq_f32(a[1], b[1]), a[1], b[1]),
            ]
        }
    }
}

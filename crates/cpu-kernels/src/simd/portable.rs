//! [`Portable`]: 16 lanes in plain Rust.
//!
//! It runs on processors that no other implementation supports, and the others are tested against it.
//! Operations are functions and not inlined: kernels with sixteen-lane loops, unrolled many times, took the
//! compiler 13 times as long as all others and were hardly faster.

use half::{bf16, f16};
use tokenmill_quant::e4m3;

use super::{Kernel, Simd, two_to};

/// Arrays and loops.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 16;
type I = [i32; LANES];
type F = [f32; LANES];

#[inline(always)]
fn map<A: Copy, B>(a: [A; LANES], f: impl Fn(A) -> B) -> [B; LANES] {
    std::array::from_fn(|lane| f(a[lane]))
}

#[inline(always)]
fn zip<A: Copy, B: Copy, C>(a: [A; LANES], b: [B; LANES], f: impl Fn(A, B) -> C) -> [C; LANES] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

#[inline(always)]
fn halves(a: i32) -> [u16; 2] {
    [a as u16, (a >> 16) as u16]
}

#[inline(always)]
fn from_halves([low, high]: [u16; 2]) -> i32 {
    i32::from(low) | i32::from(high) << 16
}

#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all: the caller vouches for the pointers, see `Simd`"
)]
impl Simd for Portable {
    const LANES: usize = LANES;
    const MAX_ROWS: usize = 2;
    const MAX_DIRECT_ROWS: usize = 4;
    const UNROLLS: bool = false;
    type I = I;
    type F = F;

    #[inline(never)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe { kernel.run::<Self>() }
    }

    #[inline(always)]
    unsafe fn settle(_: F) {}

    #[inline(never)]
    fn prefetch(_: *const u8) {}

    #[inline(never)]
    unsafe fn load(ptr: *const u8) -> I {
        unsafe { ptr.cast::<I>().read_unaligned() }
    }

    #[inline(never)]
    unsafe fn store(ptr: *mut u8, a: I) {
        unsafe { ptr.cast::<I>().write_unaligned(a) }
    }

    #[inline(never)]
    unsafe fn store_low_bytes(ptr: *mut i8, a: I) {
        unsafe {
            ptr.cast::<[i8; LANES]>()
                .write_unaligned(a.map(|lane| lane as i8));
        }
    }

    #[inline(never)]
    unsafe fn splat(a: i32) -> I {
        [a; LANES]
    }

    #[inline(never)]
    unsafe fn splat_u8(a: u8) -> I {
        [i32::from_ne_bytes([a; 4]); LANES]
    }

    #[inline(never)]
    unsafe fn load_splat(ptr: *const u8) -> I {
        [unsafe { ptr.cast::<i32>().read_unaligned() }; LANES]
    }

    #[inline(never)]
    unsafe fn load_u8(ptr: *const u8) -> I {
        map(unsafe { ptr.cast::<[u8; LANES]>().read_unaligned() }, i32::from)
    }

    #[inline(never)]
    unsafe fn load_i8(ptr: *const u8) -> I {
        map(unsafe { ptr.cast::<[i8; LANES]>().read_unaligned() }, i32::from)
    }

    #[inline(never)]
    unsafe fn load_u8_pairs(ptr: *const u8) -> I {
        map(
            unsafe { ptr.cast::<[[u8; 2]; LANES]>().read_unaligned() },
            |pair| from_halves(pair.map(u16::from)),
        )
    }

    #[inline(never)]
    unsafe fn load_i8_pairs(ptr: *const u8) -> I {
        map(
            unsafe { ptr.cast::<[[i8; 2]; LANES]>().read_unaligned() },
            |pair| from_halves(pair.map(|byte| i16::from(byte) as u16)),
        )
    }

    #[inline(never)]
    unsafe fn store_low_halves(ptr: *mut i16, a: I) {
        unsafe {
            ptr.cast::<[i16; LANES]>()
                .write_unaligned(a.map(|lane| lane as i16));
        }
    }

    #[inline(never)]
    unsafe fn look_up(table: &[u8; 16], indices: I) -> I {
        map(indices, |lane| {
            i32::from_ne_bytes(lane.to_ne_bytes().map(|index| table[usize::from(index)]))
        })
    }

    #[inline(never)]
    unsafe fn and(a: I, b: I) -> I {
        zip(a, b, |a, b| a & b)
    }

    #[inline(never)]
    unsafe fn or(a: I, b: I) -> I {
        zip(a, b, |a, b| a | b)
    }

    #[inline(never)]
    unsafe fn shr16(a: I, n_bits: u32) -> I {
        map(a, |a| from_halves(halves(a).map(|half| half >> n_bits)))
    }

    #[inline(never)]
    unsafe fn shl16(a: I, n_bits: u32) -> I {
        map(a, |a| from_halves(halves(a).map(|half| half << n_bits)))
    }

    #[inline(never)]
    unsafe fn shl32(a: I, n_bits: u32) -> I {
        map(a, |a| a << n_bits)
    }

    #[inline(never)]
    unsafe fn shr32(a: I, n_bits: u32) -> I {
        map(a, |a| (a as u32 >> n_bits) as i32)
    }

    #[inline(never)]
    unsafe fn add_i32(a: I, b: I) -> I {
        zip(a, b, i32::wrapping_add)
    }

    #[inline(never)]
    unsafe fn sub_i32(a: I, b: I) -> I {
        zip(a, b, i32::wrapping_sub)
    }

    #[inline(never)]
    unsafe fn dot_u8<const IS_WIDE: bool>(acc: I, unsigned: I, signed: I) -> I {
        let products = zip(unsigned, signed, |unsigned, signed| {
            let (unsigned, signed) = (unsigned.to_ne_bytes(), signed.to_ne_bytes());
            (0..4)
                .map(|i| i32::from(unsigned[i]) * i32::from(signed[i] as i8))
                .sum::<i32>()
        });
        zip(acc, products, i32::wrapping_add)
    }

    #[inline(never)]
    unsafe fn dot_i16(acc: I, a: I, b: I) -> I {
        let products = zip(a, b, |a, b| {
            let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
            i32::from(a0 as i16) * i32::from(b0 as i16) + i32::from(a1 as i16) * i32::from(b1 as i16)
        });
        zip(acc, products, i32::wrapping_add)
    }

    #[inline(never)]
    unsafe fn to_f32(a: I) -> F {
        map(a, |a| a as f32)
    }

    #[inline(never)]
    unsafe fn to_i32(a: F) -> I {
        map(a, |a| {
            let rounded = a.round_ties_even();
            if (-2_147_483_648.0..2_147_483_648.0).contains(&rounded) {
                rounded as i32
            } else {
                i32::MIN
            }
        })
    }

    #[inline(never)]
    unsafe fn from_bits(a: I) -> F {
        map(a, |a| f32::from_bits(a as u32))
    }

    #[inline(never)]
    unsafe fn load_f32(ptr: *const f32) -> F {
        unsafe { ptr.cast::<F>().read_unaligned() }
    }

    #[inline(never)]
    unsafe fn store_f32(ptr: *mut f32, a: F) {
        unsafe { ptr.cast::<F>().write_unaligned(a) }
    }

    #[inline(never)]
    unsafe fn load_f16(ptr: *const u8) -> F {
        map(unsafe { ptr.cast::<[u16; LANES]>().read_unaligned() }, |bits| {
            f16::from_bits(bits).to_f32()
        })
    }

    #[inline(never)]
    unsafe fn load_bf16(ptr: *const u8) -> F {
        map(unsafe { ptr.cast::<[u16; LANES]>().read_unaligned() }, |bits| {
            bf16::from_bits(bits).to_f32()
        })
    }

    #[inline(never)]
    unsafe fn load_e4m3(ptr: *const u8) -> F {
        map(
            unsafe { ptr.cast::<[u8; LANES]>().read_unaligned() },
            e4m3::decode,
        )
    }

    #[inline(never)]
    unsafe fn splat_f32(a: f32) -> F {
        [a; LANES]
    }

    #[inline(never)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(never)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(never)]
    unsafe fn mul_two_to(a: F, n: I) -> F {
        unsafe { two_to::mul_two_to::<Self>(a, n) }
    }

    #[inline(never)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(never)]
    unsafe fn sub(a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(never)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }

    #[inline(never)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(never)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
}

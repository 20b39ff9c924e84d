//! [`PageType`]: the storage of numbers in a page, and the loads of a kernel.
//!
//! The kernels are the same for all types. Invariant: a number has the same value in whatever vector it is
//! loaded.

use crate::simd::Simd;

use super::{BLOCK_COLS, PAGE_LEN, SCALE_BYTES};

/// The storage of numbers in a page.
pub(super) trait PageType: Copy + 'static {
    /// Whether 32 columns have a scale for each token.
    const HAS_SCALES: bool;
    /// The number of bits of a number.
    const BITS: usize;
    /// The number of bytes of a number; 0 if it has less than 8 bits.
    const BYTES: usize = Self::BITS / 8;
    /// The number of bytes of 32 columns of a page with their scales.
    const BLOCK_BYTES: usize = SCALE_BYTES + PAGE_LEN * BLOCK_COLS * Self::BITS / 8;

    /// Returns the number of bytes of a token's `dim` numbers, with their scales.
    fn head_bytes(dim: usize) -> usize {
        if Self::HAS_SCALES {
            dim.div_ceil(BLOCK_COLS) * Self::BLOCK_BYTES / PAGE_LEN
        } else {
            dim * Self::BYTES
        }
    }

    /// Loads the numbers from index `at` of those at `ptr`, as many as a vector has lanes, without their
    /// scales. If there are scales, the numbers at `ptr` are those of 32 columns.
    ///
    /// # Safety
    /// The processor has the features of `S`, the numbers are at `ptr`, and `at` is a multiple of the lanes.
    unsafe fn load<S: Simd>(ptr: *const u8, at: usize) -> S::F;
}

#[derive(Clone, Copy)]
pub(super) struct F32Page;
impl PageType for F32Page {
    const HAS_SCALES: bool = false;
    const BITS: usize = 32;

    #[inline(always)]
    unsafe fn load<S: Simd>(ptr: *const u8, at: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_f32(ptr.cast::<f32>().add(at)) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct F16Page;
impl PageType for F16Page {
    const HAS_SCALES: bool = false;
    const BITS: usize = 16;

    #[inline(always)]
    unsafe fn load<S: Simd>(ptr: *const u8, at: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(ptr.add(2 * at)) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct E4M3Page;
impl PageType for E4M3Page {
    const HAS_SCALES: bool = false;
    const BITS: usize = 8;

    #[inline(always)]
    unsafe fn load<S: Simd>(ptr: *const u8, at: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_e4m3(ptr.add(at)) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q8Page;
impl PageType for Q8Page {
    const HAS_SCALES: bool = true;
    const BITS: usize = 8;

    #[inline(always)]
    unsafe fn load<S: Simd>(ptr: *const u8, at: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::to_f32(S::load_i8(ptr.add(at))) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q4Page;
impl PageType for Q4Page {
    const HAS_SCALES: bool = true;
    const BITS: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Simd>(ptr: *const u8, at: usize) -> S::F {
        const HALF: usize = PAGE_LEN * BLOCK_COLS / 2;
        // SAFETY: the caller's contract; numbers of one vector are in the same half.
        unsafe {
            let bytes = S::load_u8(ptr.add(at % HALF));
            let bits = if at < HALF {
                S::and(bytes, S::splat(0xf))
            } else {
                S::shr32(bytes, 4)
            };
            S::to_f32(S::sub_i32(bits, S::splat(8)))
        }
    }
}

//! [`Simd`]: the vector operations that kernels are written in, and the choice of an instruction set.
//!
//! One kernel source serves every instruction set: kernels are generic over [`Simd`] and inlined into a function that
//! enables the features ([`Simd::call`]). Invariant: every implementation computes the same bits. Integer operations are
//! exact, float operations are single IEEE operations, and a vector of 8 lanes is half of one of 16.
//!
//! | implementation | lanes | 8-bit products |
//! |---|---|---|
//! | [`Avx512`] | 16 | `vpdpbusd` |
//! | [`Avx2`] with VNNI | 8 | `vpdpbusd` |
//! | [`Avx2`] | 8 | `vpmaddubsw`, `vpmaddwd` |
//! | [`Neon`] with products of matrices | 8 | `usdot`, `usmmla` |
//! | [`Neon`] with dot products | 8 | `sdot` |
//! | [`Neon`] | 8 | `smull`, `addp`, `sadalp` |
//! | [`Portable`] | 16 | loops |
//!
//! The `unsafe` of this module's callers has one reason throughout: the processor has the implementation's
//! features, as [`dispatch`] checks, and pointers are valid for the memory that a method accesses.

#[cfg(test)]
mod agreement;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
mod portable;
mod two_to;

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
use neon::Neon;
pub(crate) use portable::Portable;
use tokenmill_quant::CpuFeatures;
#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_endian = "little")
))]
use tokenmill_quant::Isa;
pub(crate) use two_to::two_to;

/// The number of rows of a tile: the most lanes of a vector.
pub const TILE_ROWS: usize = 16;

/// A vector instruction set. Vectors have [`Simd::LANES`] lanes of 32 bits.
///
/// # Safety
/// For all methods: the processor has the implementation's features. Pointers are valid for the bytes that a
/// method accesses by its documentation; no alignment is needed.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// The number of lanes of a vector; 8 or 16.
    const LANES: usize;
    /// The number of vectors that cover the rows of a tile.
    const HALVES: usize = TILE_ROWS / Self::LANES;
    /// The number of activation rows that the widest integer kernel takes at once, as registers allow.
    const MAX_ROWS: usize;
    /// The number of activation rows that the kernel without a panel takes at once, as registers allow.
    const MAX_DIRECT_ROWS: usize;
    /// Whether kernels unroll the columns of a span, so that shifts and positions are constants. If
    /// operations are calls, this only adds code.
    const UNROLLS: bool = true;
    /// Whether products of unsigned and signed bytes cost more than [`Self::dot_centered`], so that formats
    /// with a bias of 128 are multiplied without it.
    const CENTERS_WIDE: bool = false;
    /// Whether [`Self::dot_eights`] and its companions are available. Vectors then have eight lanes.
    const HAS_MATRIX: bool = false;
    /// Lanes of integers, or of four bytes or two 16-bit integers each.
    type I: Copy;
    /// Lanes of f32.
    type F: Copy;

    /// Runs a kernel with the features enabled, as a separate function: a kernel inlined into another that
    /// calls several would share its registers.
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output;

    /// Hints to the compiler that `a` must be computed before any later load. It emits no instruction, and
    /// portable code ignores it.
    unsafe fn settle(a: Self::F);
    /// Prefetches the cache line at `ptr`, which need not be valid.
    fn prefetch(ptr: *const u8);
    /// Reads `4 * LANES` bytes.
    unsafe fn load(ptr: *const u8) -> Self::I;
    /// Writes `4 * LANES` bytes.
    unsafe fn store(ptr: *mut u8, a: Self::I);
    /// Writes the lowest byte of each lane, `LANES` bytes.
    unsafe fn store_low_bytes(ptr: *mut i8, a: Self::I);
    /// Returns a vector with `a` in every lane.
    unsafe fn splat(a: i32) -> Self::I;
    /// Returns a vector with `a` in every byte.
    unsafe fn splat_u8(a: u8) -> Self::I;
    /// Reads 4 bytes into every lane.
    unsafe fn load_splat(ptr: *const u8) -> Self::I;
    /// Reads `LANES` unsigned bytes, one for each lane.
    unsafe fn load_u8(ptr: *const u8) -> Self::I;
    /// Reads `LANES` signed bytes, one for each lane.
    unsafe fn load_i8(ptr: *const u8) -> Self::I;
    /// Reads `2 * LANES` unsigned bytes, two 16-bit integers for each lane.
    unsafe fn load_u8_pairs(ptr: *const u8) -> Self::I;
    /// Reads `2 * LANES` signed bytes, two 16-bit integers for each lane.
    unsafe fn load_i8_pairs(ptr: *const u8) -> Self::I;
    /// Writes the lower 16 bits of each lane from 0 to `i16::MAX`, and any 16 bits for other lanes.
    unsafe fn store_low_halves(ptr: *mut i16, a: Self::I);
    /// Returns the bitwise and.
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    /// Returns the bitwise or.
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Returns, for each byte of `indices`, the table's byte at that index; indices are below 16.
    unsafe fn look_up(table: &[u8; 16], indices: Self::I) -> Self::I;
    /// Shifts each 16-bit part right, with zeros shifted in.
    unsafe fn shr16(a: Self::I, n_bits: u32) -> Self::I;
    /// Shifts each 16-bit part left.
    unsafe fn shl16(a: Self::I, n_bits: u32) -> Self::I;
    /// Shifts each lane left.
    unsafe fn shl32(a: Self::I, n_bits: u32) -> Self::I;
    /// Shifts each lane right, with zeros shifted in.
    unsafe fn shr32(a: Self::I, n_bits: u32) -> Self::I;
    /// Adds lanes.
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I;
    /// Subtracts lanes.
    unsafe fn sub_i32(a: Self::I, b: Self::I) -> Self::I;
    /// Returns `acc + Σ unsigned byte * signed byte` over the four bytes of a lane. With `IS_WIDE` the
    /// unsigned bytes may have any value, otherwise at most 127; signed bytes are not -128.
    unsafe fn dot_u8<const IS_WIDE: bool>(acc: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I;
    /// Returns `acc + Σ (unsigned byte - 128) * signed byte` over the four bytes of a lane; signed bytes are
    /// not -128. Not called without [`Self::CENTERS_WIDE`].
    #[inline(always)]
    unsafe fn dot_centered(_acc: Self::I, _unsigned: Self::I, _signed: Self::I) -> Self::I {
        unreachable!("asked for without `CENTERS_WIDE`")
    }
    /// Interleaves the lanes of two vectors: those of the first half of `a` and `b`, then those of the
    /// second. Not called without [`Self::HAS_MATRIX`].
    #[inline(always)]
    unsafe fn zip32(_a: Self::I, _b: Self::I) -> [Self::I; 2] {
        unreachable!("asked for without `HAS_MATRIX`")
    }
    /// Reverses [`Self::zip32`]: returns the even lanes, then the odd ones. Not called without
    /// [`Self::HAS_MATRIX`].
    #[inline(always)]
    unsafe fn unzip32(_a: [Self::I; 2]) -> [Self::I; 2] {
        unreachable!("asked for without `HAS_MATRIX`")
    }
    /// Adds the products of eight columns. `weights` are eight rows of eight unsigned bytes, `x` points to
    /// eight signed bytes each, and lane `2 row + i` of the sums belongs to the row and `x[i]`. Not called
    /// without [`Self::HAS_MATRIX`].
    #[inline(always)]
    unsafe fn dot_eights(_acc: [Self::I; 2], _weights: [Self::I; 2], _x: [*const u8; 2]) -> [Self::I; 2] {
        unreachable!("asked for without `HAS_MATRIX`")
    }
    /// Returns `acc + Σ a * b` over the two 16-bit integers of a lane.
    unsafe fn dot_i16(acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Does the same as [`Self::dot_i16`] if many run in parallel. It uses one instruction if there is one;
    /// LLVM prefers two, which have a shorter dependency chain.
    #[inline(always)]
    unsafe fn dot_i16_of_many(acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe { Self::dot_i16(acc, a, b) }
    }
    /// Converts integers to f32, rounded to nearest even.
    unsafe fn to_f32(a: Self::I) -> Self::F;
    /// Converts f32 to integers, rounded to nearest even; values that do not fit become the least integer.
    unsafe fn to_i32(a: Self::F) -> Self::I;
    /// Returns the f32 with these bits.
    unsafe fn from_bits(a: Self::I) -> Self::F;

    /// Reads `LANES` f32.
    unsafe fn load_f32(ptr: *const f32) -> Self::F;
    /// Writes `LANES` f32.
    unsafe fn store_f32(ptr: *mut f32, a: Self::F);
    /// Reads `LANES` half-precision values.
    unsafe fn load_f16(ptr: *const u8) -> Self::F;
    /// Reads `LANES` bfloat16 values.
    unsafe fn load_bf16(ptr: *const u8) -> Self::F;
    /// Reads `LANES` numbers of E4M3, a byte each.
    #[inline(always)]
    unsafe fn load_e4m3(ptr: *const u8) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe {
            let code = Self::load_u8(ptr);
            let magnitude = Self::shl32(Self::and(code, Self::splat(0x7f)), 20);
            let magnitude = Self::from_bits(Self::add_i32(magnitude, Self::splat((127 - 7) << 23)));
            // Below 2^-6 there is no leading one: if `x` was read with one, the value is `2 x - 2^-6`. For
            // other values that is larger than `x`, so the minimum is right for both.
            let without_one = Self::fma(magnitude, Self::splat_f32(2.0), Self::splat_f32(-1.0 / 64.0));
            let value = Self::min(magnitude, without_one);
            // 1 or -1, and NaN for the code of 480: only its product is beyond f32.
            let sign = Self::shl32(Self::and(code, Self::splat(0x80)), 24);
            let sign = Self::from_bits(Self::or(sign, Self::splat(0x3f80_0000)));
            let product = Self::mul(magnitude, Self::splat_f32(7.3e35));
            Self::mul(value, Self::add(sign, Self::sub(product, product)))
        }
    }
    /// Returns a vector with `a` in every lane.
    unsafe fn splat_f32(a: f32) -> Self::F;
    /// Returns `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Returns `a * b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// Returns `a * 2^n`, rounded once, for `a` of a magnitude between 1/2 and 2, or NaN, and `n` from -200
    /// to 200.
    unsafe fn mul_two_to(a: Self::F, n: Self::I) -> Self::F;
    /// Returns `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// Returns `a - b`.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// Returns `a / b`.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// Returns the larger of the two; the second operand if either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// Returns the smaller of the two; the second operand if either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
}

/// Code that is generic over the instruction set.
pub(crate) trait Kernel {
    /// The type of the result.
    type Output;

    /// Runs the code; implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The processor has the features of `S`, and the contracts of the kernel's pointers hold.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Runs a kernel with the best instruction set of `features`.
///
/// # Safety
/// The contracts of the kernel's pointers hold.
pub(crate) unsafe fn dispatch<K: Kernel>(features: CpuFeatures, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if features.has(Isa::Avx512Vnni) {
            // SAFETY: the processor has the features, the caller vouches for the kernel.
            return unsafe { Avx512::call(kernel) };
        }
        if features.has(Isa::AvxVnni) {
            // SAFETY: as above.
            return unsafe { Avx2::<true>::call(kernel) };
        }
        if features.has(Isa::Avx2) {
            // SAFETY: as above.
            return unsafe { Avx2::<false>::call(kernel) };
        }
    }
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    {
        if features.has(Isa::I8mm) {
            // SAFETY: the processor has the features, the caller vouches for the kernel.
            return unsafe { Neon::<true, true>::call(kernel) };
        }
        if features.has(Isa::Dotprod) {
            // SAFETY: as above.
            return unsafe { Neon::<true, false>::call(kernel) };
        }
        if features.has(Isa::Neon) {
            // SAFETY: as above.
            return unsafe { Neon::<false, false>::call(kernel) };
        }
    }
    let _ = features;
    // SAFETY: portable code needs no features, the caller vouches for the kernel.
    unsafe { Portable::call(kernel) }
}

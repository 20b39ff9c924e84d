//! [`F16Bits`]: a half-precision number as stored in a block, and its conversions.
//!
//! Blocks have no alignment of their own, so that they can start at any byte offset in a file; a scale is
//! therefore two little-endian bytes, not a `half::f16`. The decoder is plain arithmetic without a branch or
//! a feature test, so that a compiler can vectorize it. It is exact: it agrees with the hardware's on every
//! bit pattern that is not a NaN, and keeps NaN payloads.

use bytemuck::{Pod, Zeroable};

/// An IEEE 754 binary16 number, little-endian, without alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F16Bits([u8; 2]);

impl F16Bits {
    /// Rounds to nearest, ties to even, as ggml does.
    pub fn from_f32(value: f32) -> Self {
        Self(half::f16::from_f32(value).to_bits().to_le_bytes())
    }

    /// Returns the value, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let sign = (bits & 0x8000) << 16;
        // With the exponent's bias off by 112, multiplying by 2^112 is exact for normal and subnormal
        // numbers.
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(sign | magnitude.to_bits() | special)
    }

    /// Creates the number with these bytes.
    #[inline(always)]
    pub const fn from_le_bytes(bytes: [u8; 2]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes as stored in a block.
    #[inline(always)]
    pub const fn to_le_bytes(self) -> [u8; 2] {
        self.0
    }

    /// Returns the bit pattern.
    #[inline(always)]
    pub const fn to_bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }
}

//! [`F16Bits`]: a half-precision number as it lies in a block, and its conversions.
//!
//! Blocks have no alignment of their own, so that any byte offset in a file is as good as another; a scale is therefore
//! two little-endian bytes, not a `half::f16`. The decoder is plain arithmetic without a branch or a feature test,
//! which a compiler vectorizes, and exact: it agrees with the hardware's on every bit pattern that is not a NaN, and
//! keeps NaN payloads.

use bytemuck::{Pod, Zeroable};

/// An IEEE 754 binary16 number, little-endian, without alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F16Bits([u8; 2]);

impl F16Bits {
    /// Rounds to nearest, ties to even, as the reference does.
    pub fn from_f32(value: f32) -> Self {
        Self(half::f16::from_f32(value).to_bits().to_le_bytes())
    }

    /// The value, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let sign = (bits & 0x8000) << 16;
        // With the exponent's bias off by 112, a multiplication by 2^112 is exact for normal and subnormal numbers.
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(sign | magnitude.to_bits() | special)
    }

    /// The number whose bytes these are.
    #[inline(always)]
    pub const fn from_le_bytes(bytes: [u8; 2]) -> Self {
        Self(bytes)
    }

    /// The bytes as they lie in a block.
    #[inline(always)]
    pub const fn to_le_bytes(self) -> [u8; 2] {
        self.0
    }

    /// The bit pattern.
    #[inline(always)]
    pub const fn to_bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_decodes_to_its_value() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32_const();
            let found = F16Bits(bits.to_le_bytes()).to_f32();
            assert!(
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                "{bits:04x}"
            );
            if !found.is_nan() {
                assert_eq!(F16Bits::from_f32(found).to_bits(), bits);
            }
        }
    }
}

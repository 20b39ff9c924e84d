//! Conversions and fused arithmetic of the 16-bit float formats, rounding to nearest even.
//!
//! Separate from the lane functions because memory, atomics and matrix operations need them too. Sums and products of
//! two 16-bit floats are rounded once more from f32, which is exact (24 bits are at least twice 11 plus 2); fused
//! multiply-adds go through f64.

/// The value of an f16.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // Scaling by 2^112 moves the exponent bias from 15 to 127 and normalizes subnormals.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let is_special = u32::from(magnitude >= 0x0f80_0000);
    let value = scaled.to_bits() | (is_special * 0x7f80_0000);
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

/// Rounds to f16; what is too large becomes infinite, NaN the canonical NaN.
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return 0x7fff;
    }
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Adding 0.5 puts the last place of an f16 subnormal at the last place of an f32: the addition rounds.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0x3f00_0000) as u16;
    }
    let rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    sign | ((rounded - 0x3800_0000) >> 13) as u16
}

/// The value of a bf16.
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to bf16; NaN becomes the canonical NaN.
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return 0x7fff;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Rounds to f32 so that a second rounding to a narrower format is right: to odd.
pub(crate) fn f64_to_f32_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value || !nearest.is_finite() || nearest == 0.0 || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    let is_too_large = f64::from(nearest).abs() > value.abs();
    f32::from_bits(if is_too_large {
        nearest.to_bits() - 1
    } else {
        nearest.to_bits() + 1
    })
}

fn halves(bits: u32) -> [u16; 2] {
    [bits as u16, (bits >> 16) as u16]
}

/// Applies `f` to both f16 halves.
pub(crate) fn f16x2(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
    let low = f32_to_f16(f(f16_to_f32(a0), f16_to_f32(b0)));
    let high = f32_to_f16(f(f16_to_f32(a1), f16_to_f32(b1)));
    u32::from(low) | u32::from(high) << 16
}

/// Applies `f` to both bf16 halves.
pub(crate) fn bf16x2(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
    let low = f32_to_bf16(f(bf16_to_f32(a0), bf16_to_f32(b0)));
    let high = f32_to_bf16(f(bf16_to_f32(a1), bf16_to_f32(b1)));
    u32::from(low) | u32::from(high) << 16
}

fn fused(a: f32, b: f32, c: f32) -> f32 {
    f64_to_f32_odd(f64::from(a).mul_add(f64::from(b), f64::from(c)))
}

pub(crate) fn f16_fma(a: u16, b: u16, c: u16) -> u16 {
    f32_to_f16(fused(f16_to_f32(a), f16_to_f32(b), f16_to_f32(c)))
}

pub(crate) fn bf16_fma(a: u16, b: u16, c: u16) -> u16 {
    f32_to_bf16(fused(bf16_to_f32(a), bf16_to_f32(b), bf16_to_f32(c)))
}

/// Applies a three-operand function to both halves.
pub(crate) fn each_half(a: u32, b: u32, c: u32, f: impl Fn(u16, u16, u16) -> u16) -> u32 {
    let ([a0, a1], [b0, b1], [c0, c1]) = (halves(a), halves(b), halves(c));
    u32::from(f(a0, b0, c0)) | u32::from(f(a1, b1, c1)) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives_a_round_trip() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert_eq!(f32_to_f16(value), 0x7fff);
            } else {
                assert_eq!(f32_to_f16(value), bits, "{value}");
            }
        }
    }

    #[test]
    fn rounding_to_f16_is_to_nearest_even() {
        for (value, expected) in [
            (65504.0, 0x7bff),
            (65519.9, 0x7bff),
            (65520.0, 0x7c00),
            (1.0 + 1.0 / 2048.0, 0x3c00),
            (1.0 + 3.0 / 2048.0, 0x3c02),
            (2f32.powi(-25), 0),
            (2f32.powi(-25) * 1.5, 1),
            (-2f32.powi(-24), 0x8001),
        ] {
            assert_eq!(f32_to_f16(value), expected, "{value}");
        }
    }

    #[test]
    fn rounding_to_bf16_is_to_nearest_even() {
        assert_eq!(f32_to_bf16(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(f32_to_bf16(1.0 + 3.0 / 256.0), 0x3f82);
        assert_eq!(f32_to_bf16(f32::INFINITY), 0x7f80);
    }

    #[test]
    fn fused_multiply_add_rounds_once() {
        // (1 + 3 * 2^-10)^2 - 1: a product rounded first would lose the square of 3 * 2^-10.
        let a = 0x3c03;
        assert_eq!(
            f16_to_f32(f16_fma(a, a, 0xbc00)),
            6.0 * 2f32.powi(-10) + 2f32.powi(-17)
        );
    }
}

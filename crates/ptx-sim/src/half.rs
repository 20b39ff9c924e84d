//! Conversions and fused arithmetic of the 16-bit float formats, rounding to nearest even.
//!
//! Sums and products of two 16-bit floats are rounded once more from f32, which is exact (24 bits are at least twice
//! 11 plus 2); fused multiply-adds go through f64.

/// Returns the value of an f16.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // Scaling by 2^112 moves the exponent bias from 15 to 127 and normalizes subnormals.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let is_special = u32::from(magnitude >= 0x0f80_0000);
    let value = scaled.to_bits() | (is_special * 0x7f80_0000);
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

/// Rounds to f16; too large values become infinite, NaN the canonical NaN.
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

/// Returns the value of a bf16.
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

/// Rounds to f32 by round-to-odd, so that a second rounding to a narrower format is correct.
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

//! E4M3: 8-bit floats with a sign, four exponent bits with a bias of 7 and three mantissa bits.
//!
//! It is not a [format](crate::formats) of a GGUF file: weights of Hugging Face folders and stored keys and
//! values use it. There are no infinities; the code with all exponent and mantissa bits set is NaN.
//! Invariant: [`decode`] is exact, and [`encode`] returns the nearest number.
//!
//! Source: OCP 8-bit Floating Point Specification, E4M3.

/// The largest number.
pub const MAX: f32 = 448.0;

/// The values of all codes.
pub const VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = value(code as u8);
        code += 1;
    }
    values
};

const fn value(code: u8) -> f32 {
    let (exponent, mantissa) = ((code >> 3) as u32 & 0xf, (code & 7) as u32);
    let magnitude = match (exponent, mantissa) {
        (0xf, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits(((exponent + 127 - 7) << 23) | (mantissa << 20)),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Returns the value of a code.
pub fn decode(code: u8) -> f32 {
    VALUES[usize::from(code)]
}

/// Returns the code nearest to `x`, ties to the even code. Finite numbers beyond [`MAX`] become the largest;
/// non-finite numbers become NaN, so that an earlier overflow is not mistaken for a number.
pub fn encode(x: f32) -> u8 {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    /// The smallest normal number, 2^-6.
    const MIN_NORMAL: u32 = (127 - 6) << 23;
    /// A number at which f32 values are spaced like E4M3's subnormals, those below 2^-6.
    const COARSE: f32 = 16384.0;
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let magnitude = x.to_bits() & !(1 << 31);
    let code = match magnitude {
        INFINITY.. => 0x7f,
        MIN_NORMAL.. => {
            let is_odd = magnitude >> 20 & 1;
            let rounded = (magnitude + 0x7_ffff + is_odd) >> 20;
            (rounded - ((127 - 7) << 3)).min(0x7e)
        }
        _ => (f32::from_bits(magnitude) + COARSE).to_bits() - COARSE.to_bits(),
    };
    sign | code as u8
}

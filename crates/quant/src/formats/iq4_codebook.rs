//! The codebook of IQ4_NL and IQ4_XS, and the value of it that is nearest to a number.
//!
//! Both formats round to it. It knows no blocks.

/// The values of the quants of IQ4_NL and IQ4_XS, ascending.
pub(super) const CODEBOOK: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Returns the quant with the nearest codebook value, ties upwards. Doubled, the midpoints are integers.
pub(super) fn nearest_quant(x: f32) -> u8 {
    let is_above = |pair: &[i8]| x + x >= f32::from(i16::from(pair[0]) + i16::from(pair[1]));
    CODEBOOK.windows(2).filter(|pair| is_above(pair)).count() as u8
}

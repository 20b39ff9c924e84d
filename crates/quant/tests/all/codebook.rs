//! The value of the codebook of IQ4_NL and IQ4_XS that is nearest to a number.

use crate::iq4_codebook::nearest_quant;

#[test]
fn nearest_quant_takes_the_upper_of_two() {
    for (x, expected) in [
        (-1e9, 0),
        (-115.5, 1),
        (-115.6, 0),
        (0.0, 8),
        (7.0, 9),
        (101.0, 15),
        (f32::NAN, 0),
    ] {
        assert_eq!(nearest_quant(x), expected, "{x}");
    }
}

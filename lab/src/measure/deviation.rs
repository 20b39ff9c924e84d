//! [`deviation`]: the distance of results from the expected ones, and the limit of rounding errors.

/// Largest deviation by rounding. F16 and TF32 on tensor cores keep 11 bits.
pub(crate) const ROUNDING: f64 = 5e-3;

/// Returns the ratio of the root mean squares of the differences and of the expected values, from pairs of a result and an expected value; 0 if
/// all are equal. A result that is not a number makes it NaN.
pub(crate) fn deviation(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut differences, mut squares) = (0.0, 0.0);
    for (found, expected) in pairs {
        differences += (found - expected).powi(2);
        squares += expected.powi(2);
    }
    if differences == 0.0 {
        0.0
    } else {
        (differences / squares).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_is_a_share_of_the_expected_values() {
        let of = |pairs: &[(f64, f64)]| deviation(pairs.iter().copied());
        assert_eq!(of(&[(3.0, 3.0), (5.0, 4.0)]), 0.2);
        assert_eq!(of(&[(0.0, 0.0)]), 0.0);
        assert_eq!(of(&[(1.0, 0.0)]), f64::INFINITY);
        assert!(of(&[(f64::NAN, 1.0)]).is_nan());
    }
}

//! Compares rows of logits: number by number, as a whole, or bit by bit. Invariant: a number that is not finite fails.

/// Checks each number.
#[track_caller]
pub(super) fn assert_close(case: &str, expected: &[Vec<f32>], found: &[Vec<f32>], tolerance: f32) {
    assert_eq!(expected.len(), found.len(), "{case}");
    for (row, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(expected.len(), found.len(), "{case}");
        for (column, (a, b)) in expected.iter().zip(found).enumerate() {
            // Written so that NaN fails.
            let is_close = (a - b).abs() <= tolerance;
            assert!(is_close, "{case}: row {row}, column {column}: {b} instead of {a}");
        }
    }
}

/// Checks the root mean square difference, relative to that of `expected`.
#[track_caller]
pub(super) fn assert_similar(case: &str, expected: &[Vec<f32>], found: &[Vec<f32>], limit: f64) {
    let (mut difference, mut size) = (0.0, 0.0);
    for (expected, found) in expected.iter().zip(found) {
        assert_eq!(expected.len(), found.len(), "{case}");
        for (a, b) in expected.iter().zip(found) {
            difference += f64::from(a - b).powi(2);
            size += f64::from(*a).powi(2);
        }
    }
    let relative = (difference / size).sqrt();
    assert!(
        relative <= limit,
        "{case}: off by {relative:.2e}, the limit is {limit:.0e}"
    );
}

/// Checks that no bit differs.
#[track_caller]
pub(super) fn assert_same_bits(case: &str, expected: &[Vec<f32>], found: &[Vec<f32>]) {
    for (row, (expected, found)) in expected.iter().zip(found).enumerate() {
        for (column, (a, b)) in expected.iter().zip(found).enumerate() {
            assert!(
                a.to_bits() == b.to_bits(),
                "{case}: row {row}, column {column}: {b} instead of {a}"
            );
        }
    }
    assert_eq!(expected.len(), found.len(), "{case}");
}

//! [`Spread`]: summarizes repeated measurements.
//!
//! It has the median, since a machine that is busy for a moment makes some runs slow and none fast; and the
//! extremes, since a median alone hides how steady the machine was.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// Median and extremes of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Computes the spread of at least one measurement.
    ///
    /// # Errors
    /// There is none, or one that is not a positive number.
    pub(super) fn of(samples: &[f64]) -> anyhow::Result<Self> {
        let mut sorted = samples.to_vec();
        for sample in samples {
            ensure!(
                sample.is_finite() && *sample > 0.0,
                "a measurement of {sample} is none"
            );
        }
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = sorted
            .first()
            .zip(sorted.last())
            .context("nothing was measured")?;
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Ok(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(samples: &[f64], median: f64, min: f64, max: f64) {
        assert_eq!(Spread::of(samples).unwrap(), Spread { median, min, max });
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        check(&[3.0], 3.0, 3.0, 3.0);
        check(&[5.0, 1.0, 2.0], 2.0, 1.0, 5.0);
        check(&[4.0, 1.0, 2.0, 9.0], 3.0, 1.0, 9.0);
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        assert!(Spread::of(&[]).is_err());
        assert!(Spread::of(&[1.0, 0.0]).is_err());
        assert!(Spread::of(&[f64::NAN]).is_err());
    }
}

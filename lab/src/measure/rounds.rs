//! [`alternate`]: sides that take turns, and [`Spread`]: the summary of their samples.
//!
//! A summary has the median, since a machine that is busy for a moment makes some runs slow and none fast; and the
//! extremes, since a median alone hides how steady the machine was. Invariant: no side runs twice before each has run.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// Runs both sides in turn, so often, and returns the results of each. `run` gets the number of the round.
///
/// # Errors
/// The run's.
pub(crate) fn alternate<S: Copy, T>(
    sides: [S; 2],
    n_rounds: usize,
    mut run: impl FnMut(S, usize) -> anyhow::Result<T>,
) -> anyhow::Result<[Vec<T>; 2]> {
    let mut results = [Vec::new(), Vec::new()];
    for round in 0..n_rounds {
        for (side, results) in sides.into_iter().zip(&mut results) {
            results.push(run(side, round)?);
        }
    }
    Ok(results)
}

/// Returns the median, half way between the middle two of an even number; `None` without samples.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]))
}

/// Returns the sample below which a share of them lies: 0.5 for a median. `None` without samples.
pub(crate) fn percentile<T: Copy + PartialOrd>(samples: &mut [T], share: f64) -> Option<T> {
    samples.sort_by(|a, b| a.partial_cmp(b).expect("samples are numbers"));
    samples
        .get((samples.len().saturating_sub(1) as f64 * share) as usize)
        .copied()
}

/// Median and extremes of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Computes the spread of at least one measurement.
    ///
    /// # Errors
    /// There is none, or one that is not a positive number.
    pub(crate) fn of(samples: &[f64]) -> anyhow::Result<Self> {
        for sample in samples {
            ensure!(
                sample.is_finite() && *sample > 0.0,
                "a measurement of {sample} is none"
            );
        }
        Ok(Self {
            median: median(samples).context("nothing was measured")?,
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            max: samples.iter().copied().fold(0.0, f64::max),
        })
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
    fn sides_take_turns() {
        let mut order = Vec::new();
        let mut run = |side: char, round| {
            order.push((side, round));
            Ok(round)
        };
        assert_eq!(alternate(['a', 'b'], 2, &mut run).unwrap(), [[0, 1], [0, 1]]);
        assert_eq!(order, [('a', 0), ('b', 0), ('a', 1), ('b', 1)]);
    }

    #[test]
    fn a_percentile_is_a_sample() {
        let mut samples: Vec<f64> = (0..101).rev().map(f64::from).collect();
        assert_eq!(
            [0.5, 0.99, 1.0].map(|share| percentile(&mut samples, share)),
            [50.0, 99.0, 100.0].map(Some)
        );
        assert_eq!(percentile::<f64>(&mut [], 0.5), None);
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        assert!(Spread::of(&[]).is_err());
        assert!(Spread::of(&[1.0, 0.0]).is_err());
        assert!(Spread::of(&[f64::NAN]).is_err());
    }
}

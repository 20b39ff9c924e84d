//! [`cut_below`]: the part of a row's values above its mean plus some standard deviations.
//!
//! Unlike in the activations, a result depends on the whole row. Invariant: a row is reduced by one thread,
//! in eight sums.

use crate::Host;

/// Replaces each value by its excess over the mean of its row of `width` plus `cutoff` standard deviations,
/// or by 0 if there is none; see [`LayerOperations`](tokenmill_backend::LayerOperations::cut_below).
pub fn cut_below(host: &Host, cutoff: f32, width: usize, rows: &mut [f32]) {
    host.pool().for_each_chunk(rows, width, |_, row| {
        let n = row.len() as f32;
        let mean = sum_of(row, |x| x) / n;
        let variance = sum_of(row, |x| (x - mean) * (x - mean)) / n;
        let least = mean + cutoff * variance.sqrt();
        for x in row {
            *x = (*x - least).max(0.0);
        }
    });
}

/// Returns the sum of a function of each value.
pub(super) fn sum_of(row: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = row.as_chunks::<8>();
    let mut sums = [0.0_f32; 8];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += f(*x);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|x| f(*x)).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;

    #[test]
    fn what_lies_below_the_cutoff_becomes_zero() {
        let host = Host::new(2, CpuFeatures::detect()).unwrap();
        // The mean is 2, and the variance is 2.
        let mut rows = [0.0, 1.0, 2.0, 3.0, 4.0, 10.0, 10.0, 10.0, 10.0, 10.0];
        cut_below(&host, 0.5, 5, &mut rows);
        let least = 2.0 + 0.5 * 2.0_f32.sqrt();
        let expected = [0.0, 0.0, 0.0, 3.0 - least, 4.0 - least, 0.0, 0.0, 0.0, 0.0, 0.0];
        for (found, expected) in rows.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{rows:?}");
        }
    }
}

//! [`rms_norm`] and [`layer_norm`]: normalization of rows.
//!
//! Invariant: a row is summed in [`LANES`] running sums, value `i` in sum `i % LANES`, which are then added
//! in order; so a row's result depends on the row alone.

use crate::Host;

const LANES: usize = 16;

/// The number of rows per chunk, so low that the few rows of a decode step stay on the calling thread.
const ROWS_PER_CHUNK: usize = 4;

/// Returns the sum of `f` over all values.
pub(super) fn lane_sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f(value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += f(value);
    }
    lanes.iter().sum()
}

/// Returns the factor that scales the root mean square of `x` to 1.
fn rms_factor(x: &[f32], eps: f32) -> f32 {
    let mean = lane_sum(x, |value| value * value) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

fn for_each_row(host: &Host, row_len: usize, out: &mut [f32], f: impl Fn(usize, &mut [f32]) + Sync) {
    assert!(
        row_len > 0 && out.len().is_multiple_of(row_len),
        "{} values in rows of {row_len}",
        out.len()
    );
    host.pool()
        .for_each_chunk(out, row_len * ROWS_PER_CHUNK, |chunk_idx, rows| {
            for (i, row) in rows.chunks_exact_mut(row_len).enumerate() {
                f(chunk_idx * ROWS_PER_CHUNK + i, row);
            }
        });
}

/// Computes the root-mean-square norm: `out = x / sqrt(mean(x²) + eps) * weight`, for each row of `row_len`.
///
/// `x`, `out`: `[n, row_len]`; `weight`: `[row_len]`, or `None` for a norm without weights.
///
/// # Panics
/// If the shapes contradict each other.
pub fn rms_norm(host: &Host, x: &[f32], row_len: usize, weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "inputs and outputs of a norm");
    check_weight(weight, row_len);
    for_each_row(host, row_len, out, |row_idx, out| {
        let x = &x[row_idx * row_len..][..row_len];
        let factor = rms_factor(x, eps);
        match weight {
            Some(weight) => {
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                    *out = x * factor * weight;
                }
            }
            None => {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = x * factor;
                }
            }
        }
    });
}

/// Does the same as [`rms_norm`] in place; with `row_len = head_dim` it is the norm of queries and keys. A
/// weight of several rows repeats: its rows apply to as many consecutive rows of `x`, again and again.
///
/// # Panics
/// If the shapes contradict each other.
pub fn rms_norm_in_place(host: &Host, x: &mut [f32], row_len: usize, weight: Option<&[f32]>, eps: f32) {
    let n_weights = rows_of_weights(weight, row_len);
    for_each_row(host, row_len, x, |row_idx, row| {
        let factor = rms_factor(row, eps);
        match weight {
            Some(weight) => {
                let weight = &weight[row_idx % n_weights * row_len..][..row_len];
                for (x, weight) in row.iter_mut().zip(weight) {
                    *x = *x * factor * weight;
                }
            }
            None => {
                for x in row {
                    *x *= factor;
                }
            }
        }
    });
}

/// Computes the layer norm: `out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, for each row of
/// `row_len`. A weight of several rows repeats, as in [`rms_norm_in_place`].
///
/// # Panics
/// If the shapes contradict each other.
pub fn layer_norm(
    host: &Host,
    x: &[f32],
    row_len: usize,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    assert_eq!(x.len(), out.len(), "inputs and outputs of a norm");
    let n_weights = rows_of_weights(weight, row_len);
    check_weight(bias, row_len);
    for_each_row(host, row_len, out, |row_idx, out| {
        let x = &x[row_idx * row_len..][..row_len];
        let weight = weight.map(|weight| &weight[row_idx % n_weights * row_len..][..row_len]);
        let mean = lane_sum(x, |value| value) / row_len as f32;
        let variance = lane_sum(x, |value| (value - mean) * (value - mean)) / row_len as f32;
        let factor = 1.0 / (variance + eps).sqrt();
        for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
            let scaled = (x - mean) * factor * weight.map_or(1.0, |weight| weight[i]);
            *out = scaled + bias.map_or(0.0, |bias| bias[i]);
        }
    });
}

/// Returns the number of rows in a weight.
fn rows_of_weights(weight: Option<&[f32]>, row_len: usize) -> usize {
    let n_weights = weight.map_or(1, |weight| weight.len() / row_len.max(1));
    assert!(
        weight.is_none_or(|weight| n_weights > 0 && weight.len() == n_weights * row_len),
        "length of a norm's weight"
    );
    n_weights
}

fn check_weight(weight: Option<&[f32]>, row_len: usize) {
    if let Some(weight) = weight {
        assert_eq!(weight.len(), row_len, "length of a norm's weight or bias");
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;

    fn host() -> Host {
        Host::new(2, CpuFeatures::detect()).unwrap()
    }

    fn rows(n_rows: usize, row_len: usize) -> Vec<f32> {
        (0..n_rows * row_len)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.03)
            .collect()
    }

    #[test]
    fn rms_norm_follows_its_formula() {
        for row_len in [1, 3, 16, 33, 100] {
            let x = rows(7, row_len);
            let weight: Vec<f32> = (0..row_len).map(|i| 0.5 + i as f32 * 0.01).collect();
            let mut out = vec![0.0; x.len()];
            rms_norm(&host(), &x, row_len, Some(&weight), 1e-5, &mut out);
            for (x, out) in x.chunks(row_len).zip(out.chunks(row_len)) {
                let mean: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row_len as f64;
                for i in 0..row_len {
                    let expected = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                    assert!(
                        (f64::from(out[i]) - expected).abs() < 1e-5,
                        "{} vs {expected}",
                        out[i]
                    );
                }
            }
        }
    }

    #[test]
    fn in_place_gives_the_same_bits() {
        let x = rows(5, 48);
        let mut out = vec![0.0; x.len()];
        rms_norm(&host(), &x, 48, None, 1e-6, &mut out);
        let mut in_place = x;
        rms_norm_in_place(&host(), &mut in_place, 48, None, 1e-6);
        assert_eq!(out, in_place);
    }

    #[test]
    fn layer_norm_has_mean_bias_and_variance_one() {
        let x = rows(3, 64);
        let mut out = vec![0.0; x.len()];
        let bias = vec![2.0; 64];
        layer_norm(&host(), &x, 64, None, Some(&bias), 0.0, &mut out);
        for row in out.chunks(64) {
            let mean: f32 = row.iter().sum::<f32>() / 64.0;
            let variance: f32 = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 64.0;
            assert!((mean - 2.0).abs() < 1e-5 && (variance - 1.0).abs() < 1e-4);
        }
    }
}

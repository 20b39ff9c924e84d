//! Plain loops that compute the expected results of a launch of `kernel-bench`.
//!
//! Only a sample of a large result is computed, spread over all of it, including the first and the last value. Invariant: nothing here calls a
//! kernel or an operation of the GPU; inputs are quantized as the kernels quantize them, so only rounding differs.

use anyhow::ensure;
use half::f16;
use rayon::prelude::*;
use tokenmill_backend::KvType;
use tokenmill_gguf::TensorType;
use tokenmill_quant::{dequantize_row, e4m3, quantize_row};

use crate::measure::deviation::{ROUNDING, deviation};

/// Largest number of computed rows of matrices, of inputs and of heads.
pub(super) const MOST_OUTPUTS: usize = 256;
pub(super) const MOST_ROWS: usize = 16;
pub(super) const MOST_HEADS: usize = 24;

/// The distance of a launch from its twin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    /// Numbers that were compared.
    pub(super) n_compared: usize,
    /// Root mean square of the differences over that of the expected values.
    pub(super) deviation: f64,
}

/// Compares.
///
/// # Errors
/// Numbers that are too far apart.
pub(super) fn compare(found: &[f32], expected: &[f64]) -> anyhow::Result<Checked> {
    ensure!(
        found.len() == expected.len() && !found.is_empty(),
        "{} numbers were computed, {} were expected",
        found.len(),
        expected.len()
    );
    let pairs = found.iter().zip(expected);
    let deviation = deviation(pairs.map(|(&found, &expected)| (found.into(), expected)));
    ensure!(expected.iter().any(|value| *value != 0.0), "zeros show nothing");
    ensure!(
        deviation <= ROUNDING,
        "the results differ from those of a plain loop by {deviation:.4} of their size (at most {ROUNDING})"
    );
    Ok(Checked {
        n_compared: found.len(),
        deviation,
    })
}

/// Returns at most `most` of `n` places, including the first and the last.
pub(super) fn spread(n: usize, most: usize) -> Vec<usize> {
    let count = n.min(most);
    (0..count)
        .map(|index| index * (n - 1) / (count - 1).max(1))
        .collect()
}

/// Rounds a row as kernels for quantized weights read it: bytes of 32 values with a scale.
pub(super) fn quantized(row: &[f32]) -> Vec<f32> {
    let mut rounded = Vec::with_capacity(row.len());
    for group in row.chunks(32) {
        let most = group.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let scale = most / 127.0;
        let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
        rounded.extend(group.iter().map(|value| (value * inverse).round() * scale));
    }
    rounded
}

/// Returns the products of rows of `x` by rows of a matrix, `[rows, outputs]`.
pub(super) fn products(
    ty: TensorType,
    bytes: &[u8],
    n_in: usize,
    x: &[f32],
    [rows, outputs]: [&[usize]; 2],
) -> anyhow::Result<Vec<f64>> {
    let is_float = matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16);
    let x: Vec<Vec<f32>> = (rows.iter())
        .map(|row| &x[row * n_in..(row + 1) * n_in])
        .map(|row| if is_float { row.to_vec() } else { quantized(row) })
        .collect();
    let row_bytes = tokenmill_quant::Format::of(ty)?.row_bytes(n_in)?;
    let columns = outputs.par_iter().map(|output| -> anyhow::Result<Vec<f64>> {
        let mut weights = vec![0.0; n_in];
        dequantize_row(
            ty,
            &bytes[output * row_bytes..(output + 1) * row_bytes],
            &mut weights,
        )?;
        Ok(x.iter().map(|row| dot(row, &weights)).collect())
    });
    let columns = columns.collect::<anyhow::Result<Vec<_>>>()?;
    Ok((0..rows.len())
        .flat_map(|row| columns.iter().map(move |column| column[row]))
        .collect())
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Returns a head's keys or values as a store of a type keeps them.
pub(super) fn stored(ty: KvType, row: &[f32]) -> anyhow::Result<Vec<f32>> {
    Ok(match ty {
        KvType::F32 => row.to_vec(),
        KvType::F16 => row.iter().map(|&value| f16::from_f32(value).to_f32()).collect(),
        KvType::E4M3 => row
            .iter()
            .map(|&value| e4m3::decode(e4m3::encode(value)))
            .collect(),
        KvType::Q8_0 => {
            let mut bytes = vec![0; row.len() / 32 * 34];
            quantize_row(TensorType::Q8_0, row, &mut bytes)?;
            let mut rounded = vec![0.0; row.len()];
            dequantize_row(TensorType::Q8_0, &bytes, &mut rounded)?;
            rounded
        }
        KvType::Q4_0 => anyhow::bail!("no store on a GPU has Q4_0"),
    })
}

/// Rotates the pairs `(x[2i], x[2i + 1])` of a head.
pub(super) fn rotated(head: &[f32], inv_freqs: &[f32], position: usize) -> Vec<f32> {
    let mut turned = head.to_vec();
    for (pair, &inv_freq) in turned.as_chunks_mut::<2>().0.iter_mut().zip(inv_freqs) {
        let (sin, cos) = f64::from(position as f32 * inv_freq).sin_cos();
        let [a, b] = pair.map(f64::from);
        *pair = [(a * cos - b * sin) as f32, (a * sin + b * cos) as f32];
    }
    turned
}

/// Attends from one query to keys and values of its head.
pub(super) fn attend(query: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>]) -> Vec<f64> {
    let scale = 1.0 / (query.len() as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(|key| scale * dot(query, key)).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut output = vec![0.0; values[0].len()];
    for (weight, value) in weights.iter().zip(values) {
        for (out, &value) in output.iter_mut().zip(value) {
            *out += weight / sum * f64::from(value);
        }
    }
    output
}

/// Returns the tokens that a draw from the best `top_k` (0: all) may give: those that hold `top_p` of the weight, the likeliest first.
pub(super) fn nucleus(logits: &[f32], temperature: f32, top_k: usize, top_p: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if top_k > 0 {
        order.truncate(top_k);
    }
    let best = f64::from(logits[order[0]]);
    let weight = |token: usize| ((f64::from(logits[token]) - best) / f64::from(temperature)).exp();
    let all: f64 = order.iter().map(|&token| weight(token)).sum();
    let mut sum = 0.0;
    let kept = order.iter().take_while(|&&token| {
        let is_kept = sum < top_p * all;
        sum += weight(token);
        is_kept
    });
    let n_kept = kept.count();
    order.truncate(n_kept);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_in_another_place_is_noticed_and_rounding_is_not() {
        let expected: Vec<f64> = (0..64).map(|i| f64::from(i * 37 % 61) - 30.0).collect();
        let mut found: Vec<f32> = expected.iter().map(|&value| value as f32 * 1.002).collect();
        assert!(compare(&found, &expected).unwrap().deviation > 1e-3);
        found.swap(3, 40);
        assert!(
            compare(&found, &expected)
                .unwrap_err()
                .to_string()
                .contains("plain loop")
        );
        found[0] = f32::NAN;
        assert!(compare(&found, &expected).is_err());
        assert!(compare(&[], &[]).is_err());
    }

    #[test]
    fn samples_have_both_ends() {
        assert_eq!(spread(1, 4), [0]);
        assert_eq!(spread(3, 4), [0, 1, 2]);
        assert_eq!(spread(100, 4), [0, 33, 66, 99]);
    }

    #[test]
    fn a_nucleus_has_the_token_that_crosses_its_share() {
        let logits = [0.0, f32::ln(6.0), f32::ln(3.0)];
        assert_eq!(nucleus(&logits, 1.0, 0, 0.95), [1, 2, 0]);
        assert_eq!(nucleus(&logits, 1.0, 0, 0.7), [1, 2]);
        assert_eq!(nucleus(&logits, 1.0, 1, 0.7), [1]);
    }

    #[test]
    fn attention_with_one_key_is_its_value() {
        let one = |values: &[f32]| vec![values.to_vec()];
        assert_eq!(
            attend(&[1.0, 2.0], &one(&[3.0, 4.0]), &one(&[5.0, 6.0])),
            [5.0, 6.0]
        );
        let turned = rotated(&[1.0, 0.0], &[std::f32::consts::FRAC_PI_2], 1);
        assert!(turned[0].abs() < 1e-6 && (turned[1] - 1.0).abs() < 1e-6);
    }
}

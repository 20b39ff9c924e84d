//! Computes expected values with plain loops, and bounds their distance to a kernel's results.

use tokenmill_backend::KvType;
use tokenmill_gguf::TensorType;
use tokenmill_quant::Format;

use super::Wrong;

/// Largest difference by rounding: the ratio of the root mean squares of the differences and the results. F16 and TF32 on tensor cores keep
/// 11 bits.
const LIMIT: f64 = 5e-3;

/// Compares a kernel's results with the expected ones.
pub(super) fn compare(found: &[f32], expected: &[f64]) -> Result<(), Wrong> {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let differences = squares(&mut found.iter().zip(expected).map(|(&a, b)| f64::from(a) - b));
    let share = (differences / squares(&mut expected.iter().copied())).sqrt();
    // NaN fails this comparison.
    if found.len() == expected.len() && share <= LIMIT {
        return Ok(());
    }
    Err(Wrong::Numbers(format!(
        "the results differ from the CPU's by {share:.3} of their size (limit {LIMIT})"
    )))
}

/// Generates numbers between -1 and 1, the same on every machine.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn take(&mut self, n: usize) -> Vec<f32> {
        // Upper bits of a linear congruential generator (Knuth's MMIX).
        let mut next = || {
            self.0 = (self.0.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }
}

/// Rounds a row as kernels for quantized weights read it: blocks of 32 bytes with a scale.
pub(super) fn quantized(row: &[f32]) -> Vec<f32> {
    let mut rounded = Vec::with_capacity(row.len());
    for group in row.chunks(32) {
        let most = group.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let (scale, inverse) = (most / 127.0, if most > 0.0 { 127.0 / most } else { 0.0 });
        rounded.extend(group.iter().map(|value| (value * inverse).round() * scale));
    }
    rounded
}

/// Encodes a row in a type; returns the bytes and their values.
pub(super) fn encoded(ty: TensorType, row: &[f32]) -> Result<(Vec<u8>, Vec<f32>), Wrong> {
    let failed = |error: tokenmill_quant::QuantError| Wrong::Numbers(error.to_string());
    let format = Format::of(ty).map_err(failed)?;
    let mut bytes = vec![0; format.row_bytes(row.len()).map_err(failed)?];
    // Every type has a weighted encoder; the weights here are all equal.
    (format.quantize_row_weighted(row, &vec![1.0; row.len()], &mut bytes)).map_err(failed)?;
    let mut values = vec![0.0; row.len()];
    format.dequantize_row(&bytes, &mut values).map_err(failed)?;
    Ok((bytes, values))
}

/// Rounds a head's keys or values as a KV cache of a type stores them.
pub(super) fn stored(ty: KvType, row: &[f32]) -> Result<Vec<f32>, Wrong> {
    Ok(match ty {
        KvType::F32 => row.to_vec(),
        KvType::F16 => encoded(TensorType::F16, row)?.1,
        KvType::E4M3 => (row.iter())
            .map(|&value| tokenmill_quant::e4m3::decode(tokenmill_quant::e4m3::encode(value)))
            .collect(),
        KvType::Q8_0 | KvType::Q4_0 => encoded(TensorType::Q8_0, row)?.1,
    })
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Computes the attention of one query over the keys and values of its head.
pub(super) fn attend(query: &[f32], keys: &[&[f32]], values: &[&[f32]]) -> Vec<f64> {
    let scale = 1.0 / (query.len() as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(|key| scale * dot(query, key)).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut output = vec![0.0; query.len()];
    for (weight, value) in weights.iter().zip(values) {
        for (out, &value) in output.iter_mut().zip(*value) {
            *out += weight / sum * f64::from(value);
        }
    }
    output
}

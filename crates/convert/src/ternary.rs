//! [`not_ternary`]: whether ternary types would preserve the weights.
//!
//! It reads weights before any is converted: a few rows, of the first tensor only. Networks trained for
//! ternary types have three values per block; of others these types keep little more than signs.

use tokenmill_gguf::TensorType;
use tokenmill_quant::{Format, QuantError};

use crate::{ConvertError, planned::Planned};

/// Number of rows to check.
const N_ROWS: usize = 4;
/// Number of values that share a scale in both types.
const BLOCK_VALUES: usize = 256;
/// Maximum distance of a value to one of the three, relative to the largest of its block.
const NEAR: f32 = 0.1;
/// Minimum share of near values in networks trained for it. Normally distributed values reach about a
/// quarter.
const MOST: f64 = 0.9;

/// Returns the first tensor that becomes ternary although its values are not; `None` if there is none.
///
/// # Errors
/// An error if weights cannot be read.
pub(crate) fn not_ternary(planned: &[Planned<'_>]) -> Result<Option<String>, ConvertError> {
    let is_ternary = |ty| matches!(ty, TensorType::TQ1_0 | TensorType::TQ2_0);
    let mut tensors = planned.iter();
    let Some(tensor) =
        tensors.find(|tensor| is_ternary(tensor.choice.ty) && !is_ternary(tensor.view.info.ty))
    else {
        return Ok(None);
    };
    let info = tensor.view.info;
    let quant = |source: QuantError| ConvertError::Quant {
        name: info.name.clone(),
        source,
    };
    let format = Format::of(info.ty).map_err(quant)?;
    let n_rows = info.n_rows().min(N_ROWS);
    let n_bytes = format.row_bytes(info.row_len()).map_err(quant)? * n_rows;
    let mut buffer = Vec::new();
    let bytes =
        (tensor.view.bytes.read(0..n_bytes, &mut buffer)).map_err(|source| ConvertError::ReadTensor {
            name: info.name.clone(),
            source,
        })?;
    let mut values = vec![0.0; n_rows * info.row_len()];
    format.dequantize_row(bytes, &mut values).map_err(quant)?;
    Ok((share_near(&values) < MOST).then(|| info.name.clone()))
}

/// Returns the share of values near zero or near the largest magnitude of their block.
fn share_near(values: &[f32]) -> f64 {
    let n_near: usize = values
        .chunks(BLOCK_VALUES)
        .map(|block| {
            let greatest = block
                .iter()
                .fold(0.0_f32, |greatest, value| greatest.max(value.abs()));
            let is_near = |value: &&f32| {
                let part = value.abs() / greatest.max(f32::MIN_POSITIVE);
                part <= NEAR || part >= 1.0 - NEAR
            };
            block.iter().filter(is_near).count()
        })
        .sum();
    n_near as f64 / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use tokenmill_testkit::Random;

    use super::*;

    #[test]
    fn three_values_are_told_from_many() {
        let mut random = Random::new(3);
        let mut ternary = || [-0.02, 0.0, 0.02][random.below(3)] * (1.0 + 0.001 * random.below(9) as f32);
        let values: Vec<f32> = (0..4096).map(|_| ternary()).collect();
        assert!(share_near(&values) > 0.99);
        assert!(share_near(&[0.0; 512]) > 0.99);
        let mut random = Random::new(4);
        let uniform: Vec<f32> = (0..4096).map(|_| random.below(1001) as f32 - 500.0).collect();
        // A sum of several uniform values is nearly normal.
        let normal: Vec<f32> = uniform.chunks(8).map(|values| values.iter().sum()).collect();
        for values in [&uniform, &normal] {
            assert!(share_near(values) < 0.5, "{}", share_near(values));
        }
    }
}

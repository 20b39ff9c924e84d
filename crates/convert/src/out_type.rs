//! [`OutType`]: the type of a converted file, and of each of its tensors.
//!
//! Presets begin with such a file. Source: llama.cpp, `conversion/base.py`, for the tensors that stay F32.

use std::{fmt, str::FromStr};

use tokenmill_gguf::TensorType;

use crate::{ConvertError, Preset, TensorShape};

/// The type of a converted file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutType {
    /// The 16-bit type of the weights: F16 if some matrix has it or all are F32, else BF16.
    #[default]
    Auto,
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Eight bits.
    Q8_0,
    /// The output of `quantize` for a file in F32 if some matrix is F32, else for one in the 16-bit type of
    /// the weights.
    Preset(Preset),
}

impl FromStr for OutType {
    type Err = ConvertError;

    fn from_str(name: &str) -> Result<Self, ConvertError> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "auto" => Self::Auto,
            "f32" => Self::F32,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "q8_0" => Self::Q8_0,
            _ => Self::Preset(name.parse()?),
        })
    }
}

impl fmt::Display for OutType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::F32 => f.write_str("F32"),
            Self::F16 => f.write_str("F16"),
            Self::Bf16 => f.write_str("BF16"),
            Self::Q8_0 => f.write_str("Q8_0"),
            Self::Preset(preset) => preset.fmt(f),
        }
    }
}

/// Name suffixes of tensors that are always F32.
const ALWAYS_F32: [&str; 11] = [
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "shortconv.conv.weight",
    "altup_correct_coef.weight",
    "altup_predict_coef.weight",
];

/// Returns the type of a tensor in a file with matrices of type `wanted`, one of F32, F16, BF16 and Q8_0.
/// Quantized tensors keep their type.
pub(crate) fn type_of(tensor: &TensorShape<'_>, wanted: TensorType) -> TensorType {
    if tensor.ty.block_len() > 1 {
        return tensor.ty;
    }
    let is_small = tensor.dims.len() <= 1
        || tensor.name.ends_with("_norm.weight")
        || !tensor.name.ends_with(".weight")
        || ALWAYS_F32.iter().any(|end| tensor.name.ends_with(end));
    if is_small {
        return TensorType::F32;
    }
    if !tensor.dims[0].is_multiple_of(wanted.block_len()) {
        return TensorType::F16;
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_stays_in_single_precision() {
        let check = |name, dims: &[usize], expected| {
            let ty = TensorType::BF16;
            assert_eq!(
                type_of(&TensorShape { name, ty, dims }, TensorType::Q8_0),
                expected,
                "{name}"
            );
        };
        check("blk.0.attn_q.weight", &[64, 64], TensorType::Q8_0);
        check("blk.0.ssm_conv1d.weight", &[4, 64], TensorType::F32);
        check("blk.0.attn_q_norm.weight", &[64, 2], TensorType::F32);
        check("blk.0.ffn_gate_exps.bias", &[64, 2], TensorType::F32);
        check("output_norm.weight", &[64], TensorType::F32);
        check("blk.0.ffn_down.weight", &[48, 64], TensorType::F16);
    }

    #[test]
    fn names_are_those_of_types_and_presets() {
        assert_eq!("BF16".parse::<OutType>().unwrap(), OutType::Bf16);
        assert_eq!(
            "q4_k_m".parse::<OutType>().unwrap(),
            OutType::Preset(Preset::Q4_K_M)
        );
        assert!("q9".parse::<OutType>().is_err());
    }
}

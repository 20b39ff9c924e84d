//! Reads the quantization section of a Hugging Face `config.json`.
//!
//! Folders of every architecture may be quantized. Invariant: an unsupported method is refused by name before
//! any tensor is looked at.

use serde_json::Value;

use crate::LoadError;

use super::HfConfig;

/// The unit that each scale of FP8 weights covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fp8Scales {
    /// A whole tensor.
    Tensor,
    /// A block of 128 rows and 128 columns.
    Block,
    /// Not stated by the configuration; the shape of the scales decides.
    Either,
}

impl HfConfig {
    /// Returns the scales of weights in FP8-E4M3; `None` if the folder has no such weights. The activation
    /// scheme is ignored: backends quantize activations in their own way.
    pub(crate) fn fp8_scales(&self) -> Result<Option<Fp8Scales>, LoadError> {
        if self.get("quantization_config").is_none() {
            return Ok(None);
        }
        let config = self.object("quantization_config")?;
        match config.get("quant_method").and_then(Value::as_str) {
            Some("fp8") => {}
            Some("mxfp4") => return Ok(None),
            _ => return Err(config.wrong("quant_method", "fp8 or mxfp4")),
        }
        if config.get("fmt").is_some_and(|format| format != "e4m3") {
            return Err(config.wrong("fmt", "e4m3"));
        }
        let is_null = |key| config.get(key).is_none();
        match config.get("weight_block_size").and_then(Value::as_array) {
            Some(sizes) if sizes.iter().map(Value::as_u64).eq([Some(128), Some(128)]) => {
                Ok(Some(Fp8Scales::Block))
            }
            None if is_null("weight_block_size") => Ok(Some(if config.has("weight_block_size") {
                Fp8Scales::Tensor
            } else {
                Fp8Scales::Either
            })),
            _ => Err(config.wrong(
                "weight_block_size",
                "[128, 128], or null for a scale of each tensor",
            )),
        }
    }
}

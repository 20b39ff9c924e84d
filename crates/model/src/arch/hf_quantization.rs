//! What a Hugging Face `config.json` says of quantized weights.
//!
//! Separate from the networks' configurations: every architecture's folders may be quantized. Invariant: a method that is not
//! read is refused by its name, before any tensor is looked at.

use serde_json::Value;

use crate::LoadError;

use super::HfConfig;

/// What each scale of weights in FP8 belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fp8Scales {
    /// A whole tensor.
    Tensor,
    /// A block of 128 rows and 128 columns.
    Block,
    /// The configuration does not say it; the scales' shape does.
    Either,
}

impl HfConfig {
    /// The scales of weights in FP8-E4M3; `None` where the folder has no such weights. How activations are quantized is
    /// not asked: the backends do it in their own way.
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

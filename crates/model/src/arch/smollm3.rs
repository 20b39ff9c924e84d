//! SmolLM 3: every fourth layer has no positions.
//!
//! Source: transformers, `models/smollm3/modeling_smollm3.py`; llama.cpp, `src/models/smollm3.cpp`.

use tokenmill_backend::RopeStyle;

use crate::LoadError;

use super::{Architecture, HfConfig, HfLayout, Recast};

/// Default period of the layers without positions.
const PERIOD: usize = 4;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "smollm3",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        for layer in descriptor.layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD) {
            layer.attention_mut().rope = None;
        }
        Ok(descriptor)
    },
    hf_classes: &["SmolLM3ForCausalLM"],
    hf_layout: HfLayout {
        recasts: Recast::NEIGHBOURS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        let has_rope = has_rope(keys.config, keys.sizes.n_layers)?;
        if keys.config.uses_windows(has_rope.len())? {
            keys.find_windows(|layer_idx| !has_rope[layer_idx])?;
        }
        keys.facts.has_rope = Some(has_rope);
        keys.usual()?;
        keys.vocab_size()?;
        keys.rope_width()
    },
};

/// Reads which layers have positions.
fn has_rope(config: &HfConfig, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    let key = "no_rope_layers";
    if let Some(listed) = config.opt_f32s(key)? {
        if listed.len() < n_layers {
            return Err(config.wrong(key, "a number for each layer"));
        }
        // Despite the name, 1 means that the layer has rope.
        return Ok(listed[..n_layers].iter().map(|&number| number != 0.0).collect());
    }
    let period = config.opt_usize("no_rope_layer_interval")?;
    let period = period.unwrap_or(PERIOD).max(1);
    Ok((1..=n_layers)
        .map(|layer| !layer.is_multiple_of(period))
        .collect())
}

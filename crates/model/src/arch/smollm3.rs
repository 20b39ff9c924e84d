//! SmolLM 3: every fourth layer has no positions.
//!
//! Source: transformers, `models/smollm3/modeling_smollm3.py`; llama.cpp, `src/models/smollm3.cpp`.

use tokenmill_backend::RopeStyle;

use super::{Architecture, HfLayout, Recast};

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
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        let bias = config.presence("attention_bias")?;
        let ffn_bias = config.presence("mlp_bias")?;
        let has_rope = config.opt_f32s("no_rope_layers")?;
        let period = config
            .opt_usize("no_rope_layer_interval")?
            .unwrap_or(PERIOD)
            .max(1);
        for (layer_idx, layer) in descriptor.layers.iter_mut().enumerate() {
            let has_rope = match &has_rope {
                // Despite the name, 1 means that the layer has rope.
                Some(has_rope) => {
                    *(has_rope.get(layer_idx))
                        .ok_or_else(|| config.wrong("no_rope_layers", "a number for each layer"))?
                        != 0.0
                }
                None => (layer_idx + 1) % period != 0,
            };
            layer.dense_mut().bias = ffn_bias;
            let attention = layer.attention_mut();
            attention.qkv_bias = bias;
            attention.output_bias = bias;
            if !has_rope {
                attention.rope = None;
            }
        }
        if config.uses_windows(descriptor.layers.len())? {
            let has_rope: Vec<bool> = (descriptor.attentions())
                .map(|attention| attention.rope.is_some())
                .collect();
            config.set_windows(&mut descriptor, |layer_idx| !has_rope[layer_idx])?;
        }
        Ok(descriptor)
    },
    rule: |keys| {
        keys.usual()?;
        keys.vocab_size()?;
        keys.rope_width()
    },
};

//! Seed-OSS: Llama with biases on q, k and v.
//!
//! Source: transformers, `models/seed_oss/modeling_seed_oss.py`; llama.cpp, `src/models/seed-oss.cpp`.

use tokenmill_backend::RopeStyle;

use crate::Presence;

use super::{Architecture, HfLayout, Recast};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "seed_oss",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = Presence::Optional;
            layer.attention_mut().output_bias = Presence::Optional;
        }
        Ok(descriptor)
    },
    hf_classes: &["SeedOssForCausalLM"],
    hf_layout: HfLayout {
        recasts: &[Recast::POST_ATTENTION],
        ..HfLayout::LLAMA
    },
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        let qkv_bias = config.presence("attention_bias")?;
        let output_bias = config.presence("attention_out_bias")?;
        let ffn_bias = config.presence("mlp_bias")?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = qkv_bias;
            layer.attention_mut().output_bias = output_bias;
            layer.dense_mut().bias = ffn_bias;
        }
        Ok(descriptor)
    },
    rule: |keys| {
        keys.usual()?;
        keys.pooling()
    },
};

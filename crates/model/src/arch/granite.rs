//! Granite 3 and 4, dense: Llama with multipliers of embeddings, scores, residuals and logits.
//!
//! Source: transformers, `models/granite/modeling_granite.py`; llama.cpp, `src/models/granite.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, Presence};

use super::{Architecture, GgufConfig, GgufRows, HfConfig, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granite",
    from_gguf: |config| {
        let mut descriptor = dense_from_gguf(config)?;
        if !has_gguf_rope(config)? {
            for layer in &mut descriptor.layers {
                layer.attention_mut().rope = None;
            }
        }
        Ok(descriptor)
    },
    hf_classes: &["GraniteForCausalLM"],
    hf_layout: HfLayout {
        gguf_rows: GgufRows::Neighbours,
        ..HfLayout::LLAMA
    },
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        set_hf_multipliers(config, &mut descriptor)?;
        let bias = config.presence("attention_bias")?;
        let ffn_bias = config.presence("mlp_bias")?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = bias;
            layer.attention_mut().output_bias = bias;
            layer.dense_mut().bias = ffn_bias;
        }
        Ok(descriptor)
    },
};

/// Describes a dense network from a file of the family.
pub(super) fn dense_from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    set_gguf_multipliers(config, &mut descriptor)?;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qkv_bias = Presence::Optional;
        layer.attention_mut().output_bias = Presence::Optional;
        layer.dense_mut().bias = Presence::Optional;
    }
    Ok(descriptor)
}

/// Returns whether there is rope. The family's files use a key for it that has another meaning elsewhere.
pub(super) fn has_gguf_rope(config: &GgufConfig<'_>) -> Result<bool, LoadError> {
    Ok(config.opt_bool("rope.scaling.finetuned")?.unwrap_or(true))
}

/// Sets the multipliers from a file of the family; [`GgufConfig::decoder`] reads the score multiplier.
pub(super) fn set_gguf_multipliers(
    config: &GgufConfig<'_>,
    descriptor: &mut Descriptor,
) -> Result<(), LoadError> {
    descriptor.embedding_scale = config.opt_positive("embedding_scale")?.unwrap_or(1.0);
    descriptor.residual_scale = config.opt_positive("residual_scale")?.unwrap_or(1.0);
    descriptor.logit_scale = 1.0 / config.opt_positive("logit_scale")?.unwrap_or(1.0);
    Ok(())
}

/// Sets the multipliers from a folder of the family.
pub(super) fn set_hf_multipliers(config: &HfConfig, descriptor: &mut Descriptor) -> Result<(), LoadError> {
    descriptor.embedding_scale = config.opt_f32("embedding_multiplier")?.unwrap_or(1.0);
    descriptor.residual_scale = config.opt_f32("residual_multiplier")?.unwrap_or(1.0);
    descriptor.logit_scale = 1.0 / config.opt_f32("logits_scaling")?.unwrap_or(1.0);
    if let Some(scale) = config.opt_f32("attention_multiplier")? {
        for layer in &mut descriptor.layers {
            layer.attention_mut().scale = scale;
        }
    }
    Ok(())
}

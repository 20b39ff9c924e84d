//! Granite 3 and 4, dense: Llama with multipliers of embeddings, scores, residuals and logits.
//!
//! Source: transformers, `models/granite/modeling_granite.py`; llama.cpp, `src/models/granite.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError};

use super::{Architecture, GgufConfig, GgufKeys, HfLayout, Recast, Recasts};

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
        recasts: RECASTS,
        ..HfLayout::LLAMA
    },
    rule,
};

/// The changes of the tensors of all architectures of the family.
pub(super) const RECASTS: Recasts = &[
    ("ssm_conv1d.weight", Recast::Squeeze),
    ("ssm_a", Recast::Column),
    ("ssm_d", Recast::Column),
    ("attn_q.weight", Recast::NeighbouringQueries),
    ("attn_q.bias", Recast::NeighbouringQueries),
    ("attn_k.weight", Recast::NeighbouringKeys),
    ("attn_k.bias", Recast::NeighbouringKeys),
    ("ffn_gate_up_exps.weight", Recast::GATE_AND_UP),
    ("ffn_up_shexp.weight", Recast::SharedGateAndUp),
    ("ffn_down_shexp.weight", Recast::SharedDown),
];

/// Describes a dense network from a file of the family.
pub(super) fn dense_from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    set_gguf_multipliers(config, &mut descriptor)?;
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

/// Collects the keys of a folder of the family.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_biases(["attention_bias", "mlp_bias"])?;
    keys.usual()?;
    keys.vocab_size()?;
    keys.set_count("rope.dimension_count", keys.sizes.head_dim)?;
    keys.copy_number("attention.scale", &["attention_multiplier"])?;
    keys.copy_number("embedding_scale", &["embedding_multiplier"])?;
    keys.copy_number("residual_scale", &["residual_multiplier"])?;
    keys.copy_number("logit_scale", &["logits_scaling"])?;
    let shared = keys.config.opt_first_usize(&["shared_intermediate_size"])?;
    if let Some(width) = shared.filter(|&width| width > 0) {
        keys.set_count("expert_shared_feed_forward_length", width)?;
    }
    Ok(())
}

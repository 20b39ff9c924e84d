//! StableLM: layer norms, rope over a part of each head; in the larger versions both halves side by side.
//!
//! Source: transformers, `models/stablelm/modeling_stablelm.py`; llama.cpp, `src/models/stablelm.cpp`.

use tokenmill_backend::{NormKind, RopeStyle};

use crate::{Descriptor, LoadError, Presence, QkNorm, Residual};

use super::{Architecture, GgufKeys, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "stablelm",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        let is_parallel = config.opt_bool("use_parallel_residual")?.unwrap_or(false);
        let has_norms = config.has_qk_norm("blk.0.attn_q_norm.weight");
        finish(&mut descriptor, is_parallel, Presence::Optional, has_norms);
        Ok(descriptor)
    },
    hf_classes: &["StableLmForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("self_attn.q_layernorm.norms.*.weight", "attn_q_norm.weight"),
            ("self_attn.k_layernorm.norms.*.weight", "attn_k_norm.weight"),
        ],
        ..HfLayout::LLAMA
    },
    rule,
};

fn finish(descriptor: &mut Descriptor, is_parallel: bool, qkv_bias: Presence, has_norms: bool) {
    descriptor.norm.kind = NormKind::Layer;
    descriptor.norm.bias = Presence::Required;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qkv_bias = qkv_bias;
        layer.attention_mut().qk_norm = has_norms.then_some(QkNorm::EachHead);
        if is_parallel {
            layer.residual = Residual::Parallel;
        }
    }
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.facts.qkv_bias = Some(keys.config.presence("use_qkv_bias")?);
    keys.facts.has_qk_norm = keys.config.is("qk_layernorm")?;
    keys.sizes()?;
    keys.rope_width()?;
    keys.heads()?;
    let is_parallel = keys.config.is("use_parallel_residual")?;
    keys.set("use_parallel_residual", is_parallel);
    keys.unusual_rope_base();
    keys.norm_eps()
}

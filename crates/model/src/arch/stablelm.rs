//! StableLM: layer norms, rope over a part of each head; in the larger versions both halves side by side.
//!
//! Source: transformers, `models/stablelm/modeling_stablelm.py`; llama.cpp, `src/models/stablelm.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{Presence, QkNorm, Residual};

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "stablelm",
    from_gguf: |config| {
        let is_parallel = config.opt_bool("use_parallel_residual")?.unwrap_or(false);
        let has_norms = config.has_qk_norm("blk.0.attn_q_norm.weight");
        let residual = [Residual::Sequential, Residual::Parallel][usize::from(is_parallel)];
        Ok((config.decoder(RopeStyle::Neox)?)
            .with_layer_norms(Presence::Required)
            .with_residual(residual)
            .with_qk_norm(has_norms.then_some(QkNorm::EachHead)))
    },
    hf_classes: &["StableLmForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("self_attn.q_layernorm.norms.*.weight", "attn_q_norm.weight"),
            ("self_attn.k_layernorm.norms.*.weight", "attn_k_norm.weight"),
        ],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.facts.qkv_bias = Some(keys.config.presence("use_qkv_bias")?);
        keys.facts.has_qk_norm = keys.config.is("qk_layernorm")?;
        keys.sizes()?;
        keys.rope_width()?;
        keys.heads()?;
        let is_parallel = keys.config.is("use_parallel_residual")?;
        keys.set("use_parallel_residual", is_parallel);
        keys.unusual_rope_base();
        keys.norm_eps()
    },
};

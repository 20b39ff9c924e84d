//! GLM 4: rope over half of a head, gate and up in one tensor; first without, later with norms before and after each half.
//! The text models of GLM 4.1V, GLM 4.6V Flash and GLM OCR have the same network.
//!
//! GLM 4.5 and later have experts after some dense layers, chosen by sigmoids with a correction bias, a shared network,
//! and norms of q and k if the file has them. A trailing layer predicts a further token and is not read.
//!
//! Source: transformers, `models/glm/modeling_glm.py`, `models/glm4/modeling_glm4.py`; llama.cpp, `src/models/chatglm.cpp`,
//! `src/models/glm4.cpp`.

use tokenmill_backend::{RopeAxes, RopeStyle};

use crate::{LoadError, NormPlacement, Presence, QkNorm};

use super::{
    Architecture, GgufKeys, HfLayout, Recast, gguf_experts::MoeDefaults, hf_experts::EXPERTS,
    hf_layout::Drafts,
};

pub(super) const CHATGLM: Architecture = Architecture {
    name: "chatglm",
    from_gguf: |config| config.decoder(RopeStyle::Norm),
    hf_classes: &["GlmForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: dense_rule,
};

pub(super) const GLM_4: Architecture = Architecture {
    name: "glm4",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Sections)?;
        // For text models with vision, the converter reorders the rows of q and k into halves.
        if config.has_rope_sections() {
            descriptor.ropes[0].style = RopeStyle::Neox;
        }
        Ok(descriptor.with_norms(NormPlacement::PreAndPost))
    },
    hf_classes: &["Glm4ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("post_self_attn_layernorm", "post_attention_norm"),
            ("post_mlp_layernorm", "post_ffw_norm"),
        ],
        ..HfLayout::LLAMA
    },
    rule: dense_rule,
};

pub(super) const GLM_4_MOE: Architecture = Architecture {
    name: "glm4moe",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Sections)?;
        let has_norms = config.has_qk_norm("blk.0.attn_q_norm.weight");
        let moe = config.moe_with_shared(MoeDefaults::SIGMOID, Presence::Optional)?;
        config.with_experts(descriptor.with_qk_norm(has_norms.then_some(QkNorm::Head)), &moe)
    },
    hf_classes: &["Glm4MoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        drafts: Drafts::Layers,
        recasts: &[Recast::POST_ATTENTION],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.facts.qkv_bias = Some(keys.config.presence("attention_bias")?);
        keys.facts.has_qk_norm = keys.config.is("use_qk_norm")?;
        keys.find_experts_behind_dense(true, &["n_shared_experts"])?;
        keys.usual()?;
        keys.rope_width()?;
        keys.routed_experts()?;
        keys.score_by_sigmoid();
        keys.draft_layers("num_nextn_predict_layers")
    },
};

/// Collects the keys of a folder without experts.
fn dense_rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    // Folders have neighbours as rope pairs too.
    keys.facts.rotate_neighbours();
    keys.facts.qkv_bias = Some(keys.config.presence("attention_bias")?);
    keys.usual()?;
    keys.rope_width()
}

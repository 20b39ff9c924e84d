//! GLM 4.5 and later: experts after some dense layers, chosen by sigmoids with a correction bias, and a shared network.
//! Norms of q and k if the file has them. A trailing layer predicts a further token and is not read.

use tokenmill_backend::{RopeAxes, RopeStyle};

use crate::{Presence, QkNorm};

use super::{
    Architecture, HfLayout, Recast, gguf_experts::MoeDefaults, gguf_form::Drafts, hf_experts::EXPERTS,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm4moe",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Sections)?;
        let qk_norm = config
            .has_qk_norm("blk.0.attn_q_norm.weight")
            .then_some(QkNorm::Head);
        for layer in &mut descriptor.layers {
            layer.attention_mut().qk_norm = qk_norm;
        }
        let mut moe = config.moe(MoeDefaults::SIGMOID)?;
        moe.router.choice_bias = Presence::Optional;
        moe.shared = config.shared_experts(&moe)?;
        config.set_experts(&mut descriptor, &moe)?;
        Ok(descriptor)
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
        keys.find_router(true)?;
        keys.find_shared_experts(&["n_shared_experts"])?;
        let n_layers = keys.sizes.n_layers;
        keys.facts.expert_layers = Some(keys.config.expert_layers_behind_dense(n_layers)?);
        keys.usual()?;
        keys.rope_width()?;
        keys.routed_experts()?;
        keys.score_by_sigmoid();
        keys.draft_layers("num_nextn_predict_layers")
    },
};

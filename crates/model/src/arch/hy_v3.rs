//! Hunyuan 3: normed heads of q and k, experts chosen by sigmoids with a correction bias after a dense layer, and a shared network.
//!
//! Source: transformers, `models/hy_v3/modeling_hy_v3.py`; llama.cpp, `src/models/hy-v3.cpp`.

use tokenmill_backend::{ExpertScore, RopeStyle};

use crate::{Descriptor, LoadError, Presence, QkNorm};

use super::{
    Architecture, GgufConfig, GgufKeys, HfLayout, Recast, folder_facts::RouterFacts,
    gguf_experts::MoeDefaults, hf_experts::EXPERTS,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hy_v3",
    from_gguf,
    hf_classes: &["HYV3ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("mlp.router.gate", "ffn_gate_inp"),
            ("mlp.expert_bias", "exp_probs_b.bias"),
            ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
            ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
        ],
        shared: EXPERTS,
        recasts: &[("exp_probs_b.bias", Recast::Rename("exp_probs_b"))],
        ..HfLayout::LLAMA
    },
    rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qk_norm = Some(QkNorm::Head);
    }
    let mut moe = config.moe(MoeDefaults::SIGMOID)?;
    moe.router.choice_bias = Presence::Required;
    moe.shared = config.shared_experts(&moe)?;
    config.set_experts(&mut descriptor, &moe)?;
    // The converter keeps the folder's suffix of this name.
    if config.tensors.keys().any(|name| name.ends_with(".exp_probs_b")) {
        descriptor.tensor_names = &[("exp_probs_b.bias", "exp_probs_b")];
    }
    Ok(descriptor)
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_biases(["attention_bias", "mlp_bias"])?;
    keys.facts.shared_bias = keys.config.presence("mlp_bias")?;
    let scale = keys.config.f32("router_scaling_factor")?;
    keys.find_router(true)?;
    keys.facts.router = Some(RouterFacts {
        score: Some(ExpertScore::Sigmoid),
        is_normalized: true,
        scale,
    });
    keys.find_shared_experts(&["num_shared_experts"])?;
    keys.facts.expert_layers = Some(keys.config.expert_layers_behind_dense(keys.sizes.n_layers)?);
    keys.usual()?;
    keys.routed_experts()?;
    keys.score_by_sigmoid();
    keys.set("expert_weights_norm", true);
    keys.set("expert_weights_scale", scale);
    if let Some(n_ff) = keys.facts.n_shared_ff {
        keys.set_count("expert_shared_feed_forward_length", n_ff)?;
    }
    Ok(())
}

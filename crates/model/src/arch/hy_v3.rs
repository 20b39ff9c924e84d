//! Hunyuan 3: normed heads of q and k, experts chosen by sigmoids with a correction bias after a dense layer, and a shared network.
//!
//! Source: transformers, `models/hy_v3/modeling_hy_v3.py`; llama.cpp, `src/models/hy-v3.cpp`.

use tokenmill_backend::{ExpertScore, RopeStyle};

use serde_json::json;

use crate::{Descriptor, LoadError, MoeDescriptor, Presence, QkNorm};

use super::{
    Architecture, GgufConfig, GgufKeys, HfConfig, HfLayout, Recast, gguf_experts::MoeDefaults,
    hf_experts::EXPERTS,
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
    from_hf: Some(from_hf),
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

fn from_hf(config: &HfConfig) -> Result<Descriptor, LoadError> {
    let config = &config.with_defaults(&[
        ("rope_theta", json!(11_158_840.0)),
        ("first_k_dense_replace", json!(1)),
        ("num_shared_experts", json!(1)),
        ("head_dim", json!(128)),
        ("router_scaling_factor", json!(2.826)),
    ]);
    let mut descriptor = config.decoder()?;
    let bias = config.presence("attention_bias")?;
    let ffn_bias = config.presence("mlp_bias")?;
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        attention.qk_norm = Some(QkNorm::Head);
        attention.qkv_bias = bias;
        attention.output_bias = bias;
        layer.dense_mut().bias = ffn_bias;
    }
    let mut moe = experts(config.moe(true)?);
    moe.router.is_normalized = true;
    moe.router.scale = config.f32("router_scaling_factor")?;
    moe.shared = config.shared_experts(&moe, &["num_shared_experts"])?;
    if let Some(shared) = &mut moe.shared {
        shared.dense.bias = ffn_bias;
    }
    config.set_experts_by_kind(&mut descriptor, &moe)?;
    Ok(descriptor)
}

fn experts(mut moe: MoeDescriptor) -> MoeDescriptor {
    moe.router.score = ExpertScore::Sigmoid;
    moe.router.choice_bias = Presence::Required;
    moe
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.routed_experts()?;
    keys.score_by_sigmoid();
    keys.set("expert_weights_norm", true);
    let moe = (keys.descriptor.layers.iter()).find_map(|layer| layer.ffn.moe());
    if let Some(moe) = moe {
        keys.set("expert_weights_scale", moe.router.scale);
        let n_ff = moe.shared.as_ref().map_or(0, |shared| shared.dense.n_ff);
        keys.set_count("expert_shared_feed_forward_length", n_ff)?;
    }
    Ok(())
}

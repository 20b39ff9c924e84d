//! HunYuan: Llama with each head of q and k normed after rope; dense, or with softmax experts and a shared network.
//!
//! Hunyuan 3 norms before rope, and has experts chosen by sigmoids with a correction bias after a dense layer.
//!
//! Source: transformers, `models/{hunyuan_v1_dense,hunyuan_v1_moe,hy_v3}`; llama.cpp,
//! `src/models/{hunyuan-dense,hunyuan-moe,hy-v3}.cpp`.

use tokenmill_backend::{ExpertScore, RopeStyle};

use crate::{Descriptor, LoadError, Presence, QkNorm};

use super::{
    Architecture, GgufConfig, GgufKeys, HfLayout, Recast, folder_facts::RouterFacts,
    gguf_experts::MoeDefaults, hf_experts::EXPERTS, hf_layout::Names,
};

/// The context that the scaled base supports.
const LONG_CONTEXT: u32 = 256 * 1024;

pub(super) const DENSE: Architecture = Architecture {
    name: "hunyuan-dense",
    from_gguf: normed_after_rope,
    hf_classes: &["HunYuanDenseV1ForCausalLM"],
    hf_layout: HfLayout {
        layer: NORMS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        keys.usual()?;
        keys.set_own_head_width()?;
        long_context(keys)
    },
};

pub(super) const MOE: Architecture = Architecture {
    name: "hunyuan-moe",
    from_gguf: |config| {
        let moe = config.moe_with_shared(MoeDefaults::NORMALIZED, Presence::Absent)?;
        Ok(normed_after_rope(config)?.with_experts(&moe, |_| true))
    },
    hf_classes: &["HunYuanMoEV1ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("mlp.gate.wg", "ffn_gate_inp"),
            ("mlp.experts.*.gate_proj", "ffn_gate_exps"),
            ("mlp.experts.*.up_proj", "ffn_up_exps"),
            ("mlp.experts.*.down_proj", "ffn_down_exps"),
        ],
        shared: &[NORMS, SHARED],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        keys.find_router(true)?;
        keys.find_shared_experts(&["num_shared_expert"])?;
        keys.usual()?;
        keys.set_own_head_width()?;
        keys.set_count("expert_feed_forward_length", keys.config.expert_width()?)?;
        keys.copy_count("expert_shared_feed_forward_length", &["intermediate_size"])?;
        keys.copy_count("expert_used_count", &["moe_topk"])?;
        keys.copy_count("expert_shared_count", &["num_shared_expert"])?;
        long_context(keys)
    },
};

pub(super) const HY_V3: Architecture = Architecture {
    name: "hy_v3",
    from_gguf: |config| {
        let mut descriptor = (config.decoder(RopeStyle::Neox)?).with_qk_norm(QkNorm::Head);
        // The converter keeps the folder's suffix of this name.
        if config.tensors.keys().any(|name| name.ends_with(".exp_probs_b")) {
            descriptor.tensor_names = &[("exp_probs_b.bias", "exp_probs_b")];
        }
        let moe = config.moe_with_shared(MoeDefaults::SIGMOID, Presence::Required)?;
        config.with_experts(descriptor, &moe)
    },
    hf_classes: &["HYV3ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("mlp.router.gate", "ffn_gate_inp"),
            ("mlp.expert_bias", "exp_probs_b.bias"),
        ],
        shared: &[SHARED, EXPERTS],
        recasts: &[("exp_probs_b.bias", Recast::Rename("exp_probs_b"))],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        keys.facts.shared_bias = keys.config.presence("mlp_bias")?;
        let scale = keys.config.f32("router_scaling_factor")?;
        keys.find_experts_behind_dense(true, &["num_shared_experts"])?;
        keys.facts.router = Some(RouterFacts {
            score: Some(ExpertScore::Sigmoid),
            is_normalized: true,
            scale,
        });
        keys.usual()?;
        keys.routed_experts()?;
        keys.score_by_sigmoid();
        keys.set("expert_weights_norm", true);
        keys.set("expert_weights_scale", scale);
        keys.shared_width()
    },
};

const NORMS: Names = &[
    ("self_attn.query_layernorm", "attn_q_norm"),
    ("self_attn.key_layernorm", "attn_k_norm"),
];

const SHARED: Names = &[
    ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
    ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
];

fn normed_after_rope(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let descriptor = (config.decoder(RopeStyle::Neox)?).with_qk_norm(QkNorm::Head);
    Ok(descriptor.with_layers(|_, layer| layer.attention_mut().is_normed_after_rope = true))
}

/// Collects the keys of the scaled rope base, if there is one.
fn long_context(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let rope = keys.config.rope_parameters()?;
    if rope.get("alpha").is_some() {
        keys.set("rope.freq_base", keys.sizes.rope.base);
        keys.set("rope.scaling.type", "none");
        keys.set("rope.scaling.factor", 1.0_f32);
        keys.set("rope.scaling.original_context_length", LONG_CONTEXT);
        keys.set("context_length", LONG_CONTEXT);
    }
    Ok(())
}

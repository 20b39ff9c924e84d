//! HunYuan with experts: as the dense one, with softmax experts and a shared network.
//!
//! Source: transformers, `models/hunyuan_v1_moe/modeling_hunyuan_v1_moe.py`; llama.cpp, `src/models/hunyuan-moe.cpp`.

use tokenmill_backend::RopeStyle;

use crate::LoadError;

use super::{
    Architecture, GgufKeys, HfLayout,
    gguf_experts::{MoeDefaults, set_experts},
    hunyuan_dense::{finish, long_context},
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hunyuan-moe",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        finish(&mut descriptor);
        let mut moe = config.moe(MoeDefaults::NORMALIZED)?;
        moe.shared = config.shared_experts(&moe)?;
        set_experts(&mut descriptor, &moe, |_| true);
        Ok(descriptor)
    },
    hf_classes: &["HunYuanMoEV1ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("self_attn.query_layernorm", "attn_q_norm"),
            ("self_attn.key_layernorm", "attn_k_norm"),
            ("mlp.gate.wg", "ffn_gate_inp"),
            ("mlp.experts.*.gate_proj", "ffn_gate_exps"),
            ("mlp.experts.*.up_proj", "ffn_up_exps"),
            ("mlp.experts.*.down_proj", "ffn_down_exps"),
            ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
            ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
        ],
        ..HfLayout::LLAMA
    },
    rule,
};

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_attention_bias("attention_bias")?;
    keys.find_router(true)?;
    keys.find_shared_experts(&["num_shared_expert"])?;
    keys.usual()?;
    keys.set_own_head_width()?;
    let width = keys
        .config
        .opt_first_usize(&["moe_intermediate_size", "intermediate_size"])?;
    if let Some(width) = width {
        keys.set_count("expert_feed_forward_length", width)?;
    }
    keys.copy_count("expert_shared_feed_forward_length", &["intermediate_size"])?;
    keys.copy_count("expert_used_count", &["moe_topk"])?;
    keys.copy_count("expert_shared_count", &["num_shared_expert"])?;
    long_context(keys)
}

//! dots.llm1: attention as in Qwen 3, and experts as in DeepSeek V3, after some dense layers and next to a shared network.
//!
//! Source: transformers, `models/dots1/modeling_dots1.py`; llama.cpp, `src/models/dots1.cpp`.

use tokenmill_backend::RopeStyle;

use crate::QkNorm;

use super::{Architecture, HfLayout, deepseek2::set_router, gguf_experts::MoeDefaults, hf_experts::EXPERTS};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "dots1",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qk_norm = Some(QkNorm::Head);
        }
        let mut moe = config.moe(MoeDefaults {
            is_normalized: false,
            ..MoeDefaults::SIGMOID
        })?;
        set_router(&mut moe);
        moe.shared = config.shared_experts(&moe)?;
        config.set_experts(&mut descriptor, &moe)?;
        Ok(descriptor)
    },
    hf_classes: &["Dots1ForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        let first_layer = keys.config.opt_usize("max_window_layers")?.unwrap_or(62);
        keys.find_windows(|layer_idx| layer_idx >= first_layer)?;
        keys.find_router(false)?;
        keys.find_shared_experts(&["n_shared_experts"])?;
        keys.facts.expert_layers = Some(keys.config.expert_layers_behind_dense(keys.sizes.n_layers)?);
        keys.usual()?;
        keys.routed_experts()?;
        keys.score_by_sigmoid();
        Ok(())
    },
};

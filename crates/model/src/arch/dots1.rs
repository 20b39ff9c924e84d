//! dots.llm1: attention as in Qwen 3, and experts as in DeepSeek V3, after some dense layers and next to a shared network.
//!
//! Source: transformers, `models/dots1/modeling_dots1.py`; llama.cpp, `src/models/dots1.cpp`.

use tokenmill_backend::{ExpertScore, RopeStyle};

use crate::{MoeDescriptor, QkNorm};

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
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        let bias = config.presence("attention_bias")?;
        for layer in &mut descriptor.layers {
            let attention = layer.attention_mut();
            attention.qk_norm = Some(QkNorm::Head);
            attention.qkv_bias = bias;
            attention.output_bias = bias;
        }
        let first_layer = config.opt_usize("max_window_layers")?.unwrap_or(62);
        config.set_windows(&mut descriptor, |layer_idx| layer_idx >= first_layer)?;
        let mut moe = experts(config.moe(false)?);
        moe.shared = config.shared_experts(&moe, &["n_shared_experts"])?;
        config.set_experts_behind_dense(&mut descriptor, &moe)?;
        Ok(descriptor)
    },
    rule: |keys| {
        keys.usual()?;
        keys.routed_experts()?;
        keys.score_by_sigmoid();
        Ok(())
    },
};

/// Sets sigmoid scores, which folders of this architecture do not state.
fn experts(mut moe: MoeDescriptor) -> MoeDescriptor {
    moe.router.score = ExpertScore::Sigmoid;
    set_router(&mut moe);
    moe
}

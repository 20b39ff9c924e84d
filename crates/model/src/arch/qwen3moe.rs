//! Qwen 3 with experts: softmax over all, normalized over the chosen.

use tokenmill_backend::RopeStyle;

use crate::QkNorm;

use super::{Architecture, HfLayout, hf_experts::EXPERTS, qwen3};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3moe",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qk_norm = Some(QkNorm::Head);
        }
        config.set_experts(&mut descriptor, &config.moe(true)?)?;
        Ok(descriptor)
    },
    hf_classes: &["Qwen3MoeForCausalLM"],
    from_hf: |config| {
        let mut descriptor = (qwen3::QWEN3.from_hf)(config)?;
        config.set_experts_by_step(&mut descriptor, &config.moe(false)?)?;
        Ok(descriptor)
    },
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
};

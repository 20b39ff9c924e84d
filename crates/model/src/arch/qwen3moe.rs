//! Qwen 3 with experts, and the text part of Qwen 3 VL with experts: softmax over all, normalized over the chosen.

use tokenmill_backend::{RopeAxes, RopeStyle};

use crate::{Descriptor, LoadError, QkNorm};

use super::{
    Architecture, Change, GgufConfig, HfLayout, Recast, gguf_experts::MoeDefaults, hf_experts::EXPERTS,
    hf_layout::VISION, qwen3::QWEN3_VL,
};

pub(super) const QWEN3_MOE: Architecture = Architecture {
    name: "qwen3moe",
    from_gguf,
    hf_classes: &["Qwen3MoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        keys.find_windows_if_used()?;
        // If windows are enabled, all layers have one.
        let window = if keys.config.is("use_sliding_window")? {
            keys.config.opt_usize("sliding_window")?
        } else {
            None
        };
        keys.facts.windows.fill(window);
        keys.find_router(false)?;
        keys.facts.expert_layers = Some(keys.config.expert_layers_by_step(keys.sizes.n_layers)?);
        keys.usual()?;
        keys.expert_widths()
    },
};

pub(super) const QWEN3_VL_MOE: Architecture = Architecture {
    name: "qwen3vlmoe",
    from_gguf: |config| {
        let mut descriptor = from_gguf(config)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Interleaved)?;
        Ok(descriptor)
    },
    hf_classes: &["Qwen3VLMoeForConditionalGeneration"],
    // Published folders store experts with inputs as rows, the gate before up.
    hf_layout: HfLayout {
        layer: EXPERTS,
        ignored: VISION,
        changes: &[
            ("ffn_gate_up_exps.weight", Change::TransposeExpertsIfNeeded),
            ("ffn_down_exps.weight", Change::TransposeExpertsIfNeeded),
        ],
        recasts: &[("ffn_gate_up_exps.weight", Recast::GATE_AND_UP)],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        // Its class normalizes whatever `norm_topk_prob` says.
        keys.find_router(true)?;
        if let Some(router) = &mut keys.facts.router {
            router.is_normalized = true;
        }
        keys.facts.expert_layers = Some(keys.config.expert_layers_by_step(keys.sizes.n_layers)?);
        (QWEN3_VL.rule)(keys)?;
        keys.expert_widths()
    },
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qk_norm = Some(QkNorm::Head);
    }
    config.set_experts(&mut descriptor, &config.moe(MoeDefaults::NORMALIZED)?)?;
    Ok(descriptor)
}

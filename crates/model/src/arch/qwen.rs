//! Qwen 2 and 2.5 with biases on q, k and v; Qwen 3 with norms of each head of q and k before rope; the text parts of their
//! models with vision. Experts come with softmax routers: normalized in Qwen 3, and in Qwen 1.5 and 2 not normalized, next to
//! a shared network with a gate.

use tokenmill_backend::{RopeAxes, RopeStyle};

use crate::{Descriptor, LoadError, Presence, QkNorm};

use super::{
    Architecture, Change, GgufConfig, GgufKeys, HfLayout, Recast, gguf_experts::MoeDefaults,
    hf_experts::EXPERTS, hf_layout::VISION,
};

const VL_LAYOUT: HfLayout = HfLayout {
    ignored: VISION,
    ..HfLayout::LLAMA
};
const MOE_LAYOUT: HfLayout = HfLayout {
    layer: EXPERTS,
    ..HfLayout::LLAMA
};

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    from_gguf: |config| {
        let descriptor = config.decoder(RopeStyle::Neox)?;
        Ok(descriptor.with_layers(|_, layer| layer.attention_mut().qkv_bias = Presence::Required))
    },
    hf_classes: &["Qwen2ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.find_windows_if_used()?;
        keys.usual()?;
        keys.pooling()
    },
};

pub(super) const QWEN2_VL: Architecture = Architecture {
    name: "qwen2vl",
    from_gguf: |config| {
        let mut descriptor = (QWEN2.from_gguf)(config)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Sections)?;
        Ok(descriptor)
    },
    hf_classes: &[
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
    ],
    hf_layout: VL_LAYOUT,
    rule: QWEN2.rule,
};

pub(super) const QWEN2_MOE: Architecture = Architecture {
    name: "qwen2moe",
    from_gguf: |config| {
        let n_ff = config.opt_count("expert_shared_feed_forward_length")?;
        let n_ff = n_ff.map_or_else(|| config.usize("feed_forward_length"), Ok)?;
        let mut moe = config.moe(MoeDefaults::PLAIN)?;
        // The first files give the total width of a token's experts.
        if config.facts.is_none() && config.opt_count("expert_feed_forward_length")?.is_none() {
            moe.n_ff /= moe.router.n_used.max(1);
        }
        config.with_experts(config.decoder(RopeStyle::Neox)?, &moe.with_shared(n_ff, true))
    },
    hf_classes: &["Qwen2MoeForCausalLM"],
    hf_layout: MOE_LAYOUT,
    rule: |keys| {
        let bias = keys.config.opt_bool("qkv_bias")?.unwrap_or(true);
        keys.facts.qkv_bias = Some(Presence::of(bias));
        if keys.config.uses_windows(keys.sizes.n_layers)? {
            let n_with_window = keys.config.opt_usize("max_window_layers")?.unwrap_or(0);
            keys.find_windows(|layer_idx| layer_idx.is_multiple_of(2) && layer_idx < n_with_window)?;
        }
        keys.find_experts_by_step(false)?;
        keys.config.count("shared_expert_intermediate_size")?;
        keys.usual()?;
        keys.expert_widths()
    },
};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    from_gguf: |config| Ok((config.decoder(RopeStyle::Neox)?).with_qk_norm(QkNorm::Head)),
    hf_classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        keys.find_windows_if_used()?;
        keys.usual()?;
        keys.pooling()
    },
};

pub(super) const QWEN3_VL: Architecture = Architecture {
    name: "qwen3vl",
    from_gguf: |config| {
        let mut descriptor = (QWEN3.from_gguf)(config)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Interleaved)?;
        Ok(descriptor)
    },
    hf_classes: &["Qwen3VLForConditionalGeneration"],
    hf_layout: VL_LAYOUT,
    rule: vl_rule,
};

pub(super) const QWEN3_MOE: Architecture = Architecture {
    name: "qwen3moe",
    from_gguf: |config| with_experts(config, (QWEN3.from_gguf)(config)?),
    hf_classes: &["Qwen3MoeForCausalLM"],
    hf_layout: MOE_LAYOUT,
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        keys.find_windows_if_used()?;
        // If windows are enabled, all layers have one.
        let is_used = keys.config.is("use_sliding_window")?;
        let window = keys.config.opt_usize("sliding_window")?.filter(|_| is_used);
        keys.facts.windows.fill(window);
        keys.find_experts_by_step(false)?;
        keys.usual()?;
        keys.expert_widths()
    },
};

pub(super) const QWEN3_VL_MOE: Architecture = Architecture {
    name: "qwen3vlmoe",
    from_gguf: |config| with_experts(config, (QWEN3_VL.from_gguf)(config)?),
    hf_classes: &["Qwen3VLMoeForConditionalGeneration"],
    // Published folders store experts with inputs as rows, the gate before up.
    hf_layout: HfLayout {
        layer: EXPERTS,
        changes: &[
            ("ffn_gate_up_exps.weight", Change::TransposeExpertsIfNeeded),
            ("ffn_down_exps.weight", Change::TransposeExpertsIfNeeded),
        ],
        recasts: &[("ffn_gate_up_exps.weight", Recast::GATE_AND_UP)],
        ..VL_LAYOUT
    },
    rule: |keys| {
        // Its class normalizes whatever `norm_topk_prob` says.
        keys.find_experts_by_step(true)?.is_normalized = true;
        vl_rule(keys)?;
        keys.expert_widths()
    },
};

fn with_experts(config: &GgufConfig<'_>, descriptor: Descriptor) -> Result<Descriptor, LoadError> {
    config.with_experts(descriptor, &config.moe(MoeDefaults::NORMALIZED)?)
}

/// Collects the keys of a folder of Qwen 3 VL.
fn vl_rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_attention_bias("attention_bias")?;
    keys.find_windows_if_used()?;
    keys.usual()?;
    let vision = keys.config.object("vision_config")?;
    let stacked = vision.counts("deepstack_visual_indexes")?;
    keys.set_count("n_deepstack_layers", stacked.map_or(0, |layers| layers.len()))
}

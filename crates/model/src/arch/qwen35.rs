//! Qwen 3.5 to 3.8 and Qwen 3 Next: gated delta nets, and attention with a gate in every fourth layer; dense
//! or with experts.
//!
//! Rope rotates a part of each head. Its sections are for images: for text they all have the token's
//! position, so plain rope is equivalent.
//!
//! Source: transformers, `models/qwen3_next/modeling_qwen3_next.py` and `models/qwen3_5_moe/modeling_qwen3_5_moe.py`.

use tokenmill_backend::{Activation, KeyHeads, RopeStyle};

use crate::{DeltaGates, Descriptor, LoadError, MixerDescriptor, OutputGate, QkNorm};

use super::{
    Architecture, Change, GgufConfig, GgufKeys, HfLayout, Recast, gguf_experts::MoeDefaults,
    gguf_groups::MAX_DRAFT_LAYERS, hf_experts::EXPERTS, hf_layers::KINDS, hf_layout::Drafts,
};

pub(super) const QWEN_35: Architecture = Architecture {
    name: "qwen35",
    // The converter reorders value heads to match a tiled list of key heads.
    from_gguf: |config| {
        let key_heads = config.facts.map_or(KeyHeads::Tiled, |_| KeyHeads::Grouped);
        hybrid(config, key_heads, DeltaGates::Apart)
    },
    hf_classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    hf_layout: LAYOUT,
    rule,
};

pub(super) const QWEN_35_MOE: Architecture = Architecture {
    name: "qwen35moe",
    from_gguf: |config| with_experts(config, (QWEN_35.from_gguf)(config)?),
    hf_classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    hf_layout: LAYOUT,
    rule: rule_with_experts,
};

pub(super) const QWEN_3_NEXT: Architecture = Architecture {
    name: "qwen3next",
    from_gguf: |config| with_experts(config, hybrid(config, KeyHeads::Grouped, DeltaGates::ByKeyHead)?),
    hf_classes: &["Qwen3NextForCausalLM"],
    hf_layout: HfLayout {
        drafts: Drafts::Left,
        recasts: &[
            Recast::POST_ATTENTION,
            ("ssm_conv1d.weight", Recast::Squeeze),
            ("ssm_in.weight", Recast::DeltaInputs),
        ],
        ..LAYOUT
    },
    rule: rule_with_experts,
};

const LAYOUT: HfLayout = HfLayout {
    layer: &[
        ("linear_attn.in_proj_qkv", "attn_qkv"),
        ("linear_attn.in_proj_z", "attn_gate"),
        ("linear_attn.in_proj_a", "ssm_alpha"),
        ("linear_attn.in_proj_b", "ssm_beta"),
        ("linear_attn.in_proj_qkvz", "ssm_in"),
        ("linear_attn.in_proj_ba", "ssm_ba"),
        ("linear_attn.conv1d", "ssm_conv1d"),
        ("linear_attn.A_log", "ssm_a"),
        ("linear_attn.dt_bias", "ssm_dt.bias"),
        ("linear_attn.norm", "ssm_norm"),
        ("linear_attn.out_proj", "ssm_out"),
    ],
    shared: &[EXPERTS],
    // MTP layers are not read.
    ignored: &["visual.", "model.visual.", "mtp."],
    changes: &[
        ("ssm_a", Change::NegExp),
        ("attn_norm.weight", Change::AddOne),
        ("attn_q_norm.weight", Change::AddOne),
        ("attn_k_norm.weight", Change::AddOne),
        ("ffn_norm.weight", Change::AddOne),
        ("output_norm.weight", Change::AddOne),
    ],
    drafts: Drafts::Network,
    recasts: &[
        Recast::POST_ATTENTION,
        ("ssm_conv1d.weight", Recast::Squeeze),
        ("ssm_conv1d.weight", Recast::TiledRows),
        ("ssm_a", Recast::TiledRows),
        ("ssm_dt.bias", Recast::TiledRows),
        ("ssm_alpha.weight", Recast::TiledRows),
        ("ssm_beta.weight", Recast::TiledRows),
        ("attn_qkv.weight", Recast::TiledRows),
        ("attn_gate.weight", Recast::TiledRows),
        ("ssm_out.weight", Recast::TiledColumns),
        ("nextn.enorm.weight", Recast::AddOne),
        ("nextn.hnorm.weight", Recast::AddOne),
        ("nextn.shared_head_norm.weight", Recast::AddOne),
    ],
    ..HfLayout::LLAMA
};

fn hybrid(config: &GgufConfig<'_>, key_heads: KeyHeads, gates: DeltaGates) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    let recurrent = config.recurrent_layers(descriptor.layers.len())?;
    // Layers after the last decoder layer have attention.
    let (n_decoding, _) = config.layer_counts()?;
    for (layer_idx, (layer, is_recurrent)) in descriptor.layers.iter_mut().zip(recurrent).enumerate() {
        if is_recurrent && layer_idx < n_decoding {
            layer.mixer = config.delta_net(key_heads, gates)?;
        } else {
            layer.attention_mut().qk_norm = Some(QkNorm::Head);
            layer.attention_mut().output_gate = Some(OutputGate::InQuery);
        }
    }
    descriptor.tensor_names = &[("ffn_norm.weight", "post_attention_norm.weight")];
    Ok(descriptor)
}

fn with_experts(config: &GgufConfig<'_>, descriptor: Descriptor) -> Result<Descriptor, LoadError> {
    let n_shared_ff = config.usize("expert_shared_feed_forward_length")?;
    let moe = config
        .moe(MoeDefaults::NORMALIZED)?
        .with_shared(n_shared_ff, true);
    config.with_experts(descriptor, &moe)
}

/// Collects the keys of a folder with experts.
fn rule_with_experts(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_experts_by_step(true)?;
    keys.config.count("shared_expert_intermediate_size")?;
    rule(keys)
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    config.require_activation(Activation::Silu, "silu, which its recurrent layers have")?;
    keys.find_attention_bias("attention_bias")?;
    if config.opt_bool("attn_output_gate")? == Some(false) {
        keys.facts.amend_layers(|_, layer| {
            if let MixerDescriptor::Attention(attention) = &mut layer.mixer {
                attention.output_gate = None;
            }
        });
    }
    keys.usual()?;
    keys.expert_widths()?;
    let n_layers = keys.sizes.n_layers;
    let interval = keys
        .config
        .opt_first_usize(&["full_attention_interval"])?
        .unwrap_or(4);
    let by_interval = || (1..=n_layers).map(move |layer| !layer.is_multiple_of(interval.max(1)));
    let kinds = ["full_attention", "linear_attention"];
    let listed = config.layers_of_two_kinds(KINDS, kinds, n_layers)?;
    let mut recurrent = listed.unwrap_or_else(|| by_interval().collect());
    if recurrent.contains(&true) {
        let n_v_heads = config.count("linear_num_value_heads")?;
        let head_dim_v = config.count("linear_value_head_dim")?;
        keys.set_count("ssm.conv_kernel", config.count("linear_conv_kernel_dim")?)?;
        keys.set_count("ssm.state_size", config.count("linear_key_head_dim")?)?;
        keys.set_count("ssm.group_count", config.count("linear_num_key_heads")?)?;
        keys.set_count("ssm.time_step_rank", n_v_heads)?;
        keys.set_count("ssm.inner_size", n_v_heads.saturating_mul(head_dim_v))?;
    }
    keys.draft_layers("mtp_num_hidden_layers")?;
    // A list of layers may have another pattern, or none.
    if interval > 0 && by_interval().eq(recurrent.iter().copied()) {
        keys.set_count("full_attention_interval", interval)?;
    }
    let n_drafting = keys
        .config
        .opt_first_usize(&["mtp_num_hidden_layers"])?
        .unwrap_or(0);
    recurrent.extend(std::iter::repeat_n(false, n_drafting.min(MAX_DRAFT_LAYERS)));
    keys.set("attention.recurrent_layers", recurrent);
    keys.rope_width()
}

//! Qwen 3.5 to 3.8 and Qwen 3 Next: gated delta nets, and attention with a gate in every fourth layer; dense
//! or with experts.
//!
//! Rope rotates a part of each head. Its sections are for images: for text they all have the token's
//! position, so plain rope is equivalent.
//!
//! Source: transformers, `models/qwen3_next/modeling_qwen3_next.py` and `models/qwen3_5_moe/modeling_qwen3_5_moe.py`.

use serde_json::json;
use tokenmill_backend::{Activation, KeyHeads, RopeStyle};

use crate::{DeltaGates, Descriptor, LoadError, MixerDescriptor, OutputGate, QkNorm};

use super::{
    Architecture, Change, GgufConfig, GgufKeys, HfConfig, HfLayout, Recast,
    gguf_experts::MoeDefaults,
    gguf_form::{Drafts, MAX_DRAFT_LAYERS},
    hf_experts::EXPERTS,
    qwen2moe::with_gated_network,
};

pub(super) const QWEN_35: Architecture = Architecture {
    name: "qwen35",
    // The converter reorders value heads to match a tiled list of key heads.
    from_gguf: |config| hybrid(config, KeyHeads::Tiled, DeltaGates::Apart),
    hf_classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    hf_layout: LAYOUT,
    from_hf: Some(|config| hybrid_hf(config, DeltaGates::Apart)),
    rule,
};

pub(super) const QWEN_35_MOE: Architecture = Architecture {
    name: "qwen35moe",
    from_gguf: |config| {
        let mut descriptor = (QWEN_35.from_gguf)(config)?;
        set_experts(config, &mut descriptor)?;
        Ok(descriptor)
    },
    hf_classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    hf_layout: LAYOUT,
    from_hf: Some(|config| with_hf_experts(config, DeltaGates::Apart)),
    rule,
};

pub(super) const QWEN_3_NEXT: Architecture = Architecture {
    name: "qwen3next",
    from_gguf: |config| {
        let mut descriptor = hybrid(config, KeyHeads::Grouped, DeltaGates::ByKeyHead)?;
        set_experts(config, &mut descriptor)?;
        Ok(descriptor)
    },
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
    from_hf: Some(|config| with_hf_experts(config, DeltaGates::ByKeyHead)),
    rule,
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
    shared: EXPERTS,
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

fn hybrid_hf(config: &HfConfig, gates: DeltaGates) -> Result<Descriptor, LoadError> {
    // If all layers have experts, the width of a dense network may be missing.
    let config = config.with_defaults(&[("intermediate_size", json!(1))]);
    config.require_activation(Activation::Silu, "silu, which its recurrent layers have")?;
    let mut descriptor = config.decoder()?;
    let n_layers = descriptor.layers.len();
    let kinds = ["full_attention", "linear_attention"];
    let is_recurrent = if let Some(is_recurrent) = config.layers_of_two_kinds(kinds, n_layers)? {
        is_recurrent
    } else {
        let interval = config.opt_usize("full_attention_interval")?.unwrap_or(4).max(1);
        (1..=n_layers)
            .map(|layer| !layer.is_multiple_of(interval))
            .collect()
    };
    let bias = config.presence("attention_bias")?;
    let has_gate = config.opt_bool("attn_output_gate")?.unwrap_or(true);
    for (layer, is_recurrent) in descriptor.layers.iter_mut().zip(is_recurrent) {
        if is_recurrent {
            layer.mixer = config.delta_net(gates)?;
            continue;
        }
        let attention = layer.attention_mut();
        attention.qk_norm = Some(QkNorm::Head);
        attention.output_gate = has_gate.then_some(OutputGate::InQuery);
        attention.qkv_bias = bias;
        attention.output_bias = bias;
    }
    Ok(descriptor)
}

fn with_hf_experts(config: &HfConfig, gates: DeltaGates) -> Result<Descriptor, LoadError> {
    let mut descriptor = hybrid_hf(config, gates)?;
    let n_shared_ff = config.first_usize(&["shared_expert_intermediate_size"])?;
    let moe = with_gated_network(config.moe(true)?, n_shared_ff);
    config.set_experts_by_step(&mut descriptor, &moe)?;
    Ok(descriptor)
}

fn set_experts(config: &GgufConfig<'_>, descriptor: &mut Descriptor) -> Result<(), LoadError> {
    let n_shared_ff = config.usize("expert_shared_feed_forward_length")?;
    config.set_experts(
        descriptor,
        &with_gated_network(config.moe(MoeDefaults::NORMALIZED)?, n_shared_ff),
    )
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.expert_widths()?;
    let net = (keys.descriptor.layers.iter()).find_map(|layer| match &layer.mixer {
        MixerDescriptor::DeltaNet(net) => Some(*net),
        _ => None,
    });
    if let Some(net) = net {
        keys.set_count("ssm.conv_kernel", net.n_taps)?;
        keys.set_count("ssm.state_size", net.head_dim_k)?;
        keys.set_count("ssm.group_count", net.n_k_heads)?;
        keys.set_count("ssm.time_step_rank", net.n_v_heads)?;
        keys.set_count("ssm.inner_size", net.n_v_heads.saturating_mul(net.head_dim_v))?;
    }
    keys.draft_layers("mtp_num_hidden_layers")?;
    let n_drafting = keys.first_count(&["mtp_num_hidden_layers"])?.unwrap_or(0);
    let recurrent: Vec<bool> = (keys.descriptor.layers.iter())
        .map(|layer| layer.mixer.attention().is_none())
        .chain(std::iter::repeat_n(false, n_drafting.min(MAX_DRAFT_LAYERS)))
        .collect();
    let interval = keys.first_count(&["full_attention_interval"])?.unwrap_or(4);
    // A list of layers may have another pattern, or none.
    let mut layers = (recurrent.iter().enumerate()).take(keys.descriptor.layers.len());
    let is_regular = interval > 0
        && layers.all(|(layer_idx, is_recurrent)| *is_recurrent != (layer_idx + 1).is_multiple_of(interval));
    if is_regular {
        keys.set_count("full_attention_interval", interval)?;
    }
    keys.set("attention.recurrent_layers", recurrent);
    keys.rope_width()
}

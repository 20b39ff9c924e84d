//! The keys of networks with recurrent layers.

use crate::{LoadError, MixerDescriptor};

use super::keys::GgufKeys;

/// The context length that converters write for networks without positions.
pub(super) const UNBOUNDED: u32 = 1 << 20;

pub(super) fn falcon_h1(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.vocab_size()?;
    keys.state_space()
}

pub(super) fn kimi_linear(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.heads()?;
    keys.norm_eps()?;
    keys.experts()?;
    keys.vocab_size()?;
    let mixers = || keys.descriptor.layers.iter().map(|layer| &layer.mixer);
    let net = mixers().find_map(|mixer| match mixer {
        MixerDescriptor::KimiDelta(net) => Some(*net),
        _ => None,
    });
    let latent = mixers().find_map(MixerDescriptor::latent);
    let kv_heads: Vec<usize> = mixers()
        .map(|mixer| usize::from(mixer.latent().is_some()))
        .collect();
    keys.set_count_list("attention.head_count_kv", &kv_heads)?;
    if let Some(net) = net {
        keys.set_count("ssm.conv_kernel", net.n_taps)?;
        keys.set_count("kda.head_dim", net.head_dim)?;
    }
    if let Some(latent) = latent {
        keys.set_count("attention.kv_lora_rank", latent.kv_rank)?;
        if let Some(rank) = latent.q_rank {
            keys.set_count("attention.q_lora_rank", rank)?;
        }
        keys.set_count(
            "attention.key_length",
            latent.kv_rank.saturating_add(latent.rotated_dim),
        )?;
        keys.set_count(
            "attention.key_length_mla",
            latent.plain_dim.saturating_add(latent.rotated_dim),
        )?;
        keys.set_count("attention.value_length_mla", latent.head_dim_v)?;
        keys.set_count("rope.dimension_count", latent.rotated_dim)?;
    }
    keys.copy_count("attention.value_length", &["head_dim"])?;
    keys.routed_experts()?;
    keys.score_with_default();
    keys.copy_count("expert_shared_count", &["num_shared_experts"])
}

pub(super) fn lfm2(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    let width = (keys.descriptor.layers.iter()).find_map(|layer| Some(layer.ffn.dense()?.n_ff));
    if let Some(width) = width {
        keys.set_count("feed_forward_length", width)?;
    }
    keys.vocab_size()?;
    keys.kv_heads_of_layers()?;
    keys.copy_count("shortconv.l_cache", &["conv_L_cache"])?;
    if keys.arch == "lfm2moe" {
        keys.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        keys.copy_count("leading_dense_block_count", &["num_dense_layers"])?;
        keys.set("expert_gating_func", 2_u32);
    }
    Ok(())
}

pub(super) fn mamba(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.set("context_length", UNBOUNDED);
    keys.set("feed_forward_length", 0_u32);
    keys.set("attention.head_count", 0_u32);
    keys.set("attention.layer_norm_rms_epsilon", keys.descriptor.norm.eps);
    keys.state_space()
}

pub(super) fn nemotron_h(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.remove("rope.freq_base");
    let widths: Vec<usize> = (keys.descriptor.layers.iter())
        .map(|layer| match (layer.ffn.moe(), layer.ffn.dense()) {
            (Some(moe), _) => moe.n_ff,
            (None, Some(dense)) => dense.n_ff,
            (None, None) => 0,
        })
        .collect();
    keys.set_count_list("feed_forward_length", &widths)?;
    keys.kv_heads_of_layers()?;
    keys.set_own_head_width()?;
    keys.vocab_size()?;
    let width = keys.descriptor.n_embd / keys.first_count(&["num_attention_heads"])?.unwrap_or(1).max(1);
    keys.set_count("rope.dimension_count", width)?;
    keys.state_space()?;
    keys.set("rope.scaling.finetuned", false);
    keys.set("context_length", UNBOUNDED);
    if keys.arch == "nemotron_h_moe" {
        keys.routed_experts()?;
        keys.copy_count(
            "expert_shared_feed_forward_length",
            &["moe_shared_expert_intermediate_size"],
        )?;
        keys.remove("leading_dense_block_count");
        keys.copy_count("moe_latent_size", &["moe_latent_size"])?;
    }
    Ok(())
}

pub(super) fn qwen35(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
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
        .chain(std::iter::repeat_n(
            false,
            n_drafting.min(super::MAX_DRAFT_LAYERS),
        ))
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

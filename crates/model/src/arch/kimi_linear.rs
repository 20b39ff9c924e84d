//! Kimi Linear: gated delta nets with a decay per channel (KDA), alternating with latent attention without
//! positions; experts after the first layers.
//!
//! Source: transformers, `models/kimi_linear/modeling_kimi_linear.py`; llama.cpp, `src/models/kimi-linear.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{KimiDeltaDescriptor, LatentDescriptor, MixerDescriptor};

use super::{
    Architecture, Change, HfLayout, Recast,
    deepseek2::{self, LATENT_ATTENTION},
    gguf_experts::MoeDefaults,
    hf_experts::MIXTRAL_EXPERTS,
    hf_layers::KINDS,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "kimi-linear",
    from_gguf: |config| {
        let descriptor = config.decoder(RopeStyle::Norm)?;
        let rotated_dim = config.usize("rope.dimension_count")?;
        let n_heads = config.most_heads()?;
        let head_dim_k = config.usize("attention.key_length_mla")?;
        let latent = LatentDescriptor {
            n_heads,
            q_rank: (config.opt_usize("attention.q_lora_rank")?).filter(|&rank| rank > 0),
            kv_rank: config.usize("attention.kv_lora_rank")?,
            plain_dim: head_dim_k.saturating_sub(rotated_dim),
            rotated_dim,
            head_dim_v: config.usize("attention.value_length_mla")?,
            scale: 1.0 / (head_dim_k as f32).sqrt(),
            rope: None,
        };
        // No key states the delta nets' number of heads. It mostly equals that of attention.
        let rates = (0..descriptor.layers.len()).map(|layer_idx| format!("blk.{layer_idx}.ssm_beta.weight"));
        let n_net_heads = rates
            .map(|name| config.n_rows_of(&name))
            .find(|&n_rows| n_rows > 0);
        let net = KimiDeltaDescriptor {
            n_heads: n_net_heads.unwrap_or(n_heads),
            head_dim: config.usize("kda.head_dim")?,
            n_taps: config.usize("ssm.conv_kernel")?,
        };
        // No layer has rotary positions.
        let descriptor = descriptor.without_rope().with_layers(|_, layer| {
            // Layers without KV heads are recurrent.
            layer.mixer = if layer.attention_mut().n_kv_heads == 0 {
                MixerDescriptor::KimiDelta(net)
            } else {
                MixerDescriptor::Latent(latent.clone())
            };
        });
        config.with_experts(descriptor, &deepseek2::moe(config, MoeDefaults::NORMALIZED)?)
    },
    hf_classes: &["KimiLinearForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("self_attn.q_conv1d", "ssm_conv1d_q"),
            ("self_attn.k_conv1d", "ssm_conv1d_k"),
            ("self_attn.v_conv1d", "ssm_conv1d_v"),
            ("self_attn.f_a_proj", "ssm_f_a"),
            ("self_attn.f_b_proj", "ssm_f_b"),
            ("self_attn.g_a_proj", "ssm_g_a"),
            ("self_attn.g_b_proj", "ssm_g_b"),
            ("self_attn.b_proj", "ssm_beta"),
            ("self_attn.A_log", "ssm_a"),
            ("self_attn.dt_bias", "ssm_dt.bias"),
            ("self_attn.o_norm", "ssm_norm"),
            (
                "block_sparse_moe.gate.e_score_correction_bias",
                "exp_probs_b.bias",
            ),
            // The name of a dense network in folders saved by transformers.
            ("block_sparse_moe.gate_proj", "ffn_gate"),
            ("block_sparse_moe.up_proj", "ffn_up"),
            ("block_sparse_moe.down_proj", "ffn_down"),
            ("block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
            ("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
            ("block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
        ],
        shared: &[MIXTRAL_EXPERTS, LATENT_ATTENTION],
        changes: &[("ssm_a", Change::NegExp)],
        recasts: &[
            ("attn_kv_b.weight", Recast::LatentKeysAndValues),
            ("ssm_conv1d_q.weight", Recast::FourDims),
            ("ssm_conv1d_k.weight", Recast::FourDims),
            ("ssm_conv1d_v.weight", Recast::FourDims),
        ],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        let config = keys.config;
        if config.opt_bool("mla_use_nope")? == Some(false) {
            return Err(config.wrong("mla_use_nope", "true"));
        }
        if config.opt_usize("moe_layer_freq")?.unwrap_or(1) != 1 {
            return Err(config.wrong("moe_layer_freq", "1"));
        }
        let n_layers = keys.sizes.n_layers;
        keys.find_experts_behind_dense(true, &["n_shared_experts", "num_shared_experts"])?;
        keys.sizes()?;
        keys.heads()?;
        keys.norm_eps()?;
        keys.experts()?;
        if let n_groups @ 2.. = config.opt_usize("num_expert_group")?.unwrap_or(1) {
            keys.set_count("expert_group_count", n_groups)?;
        }
        keys.vocab_size()?;
        // The older layout describes the delta nets in a nested object, and counts layers from 1.
        let older = config.object("linear_attn_config")?;
        let of_net = |older_key: &str, key: &str| match older.opt_usize(older_key)? {
            Some(number) => Ok(number),
            None => config.count(key),
        };
        let kinds = ["full_attention", "linear_attention"];
        let is_recurrent: Vec<bool> = match older.counts("kda_layers")? {
            Some(layers) => (1..=n_layers).map(|layer| layers.contains(&layer)).collect(),
            None => (config.layers_of_two_kinds(KINDS, kinds, n_layers)?)
                .ok_or_else(|| config.wrong("layer_types", "a kind for each layer"))?,
        };
        let kv_heads: Vec<usize> = is_recurrent.iter().map(|&is| usize::from(!is)).collect();
        keys.set_count_list("attention.head_count_kv", &kv_heads)?;
        keys.set_count(
            "ssm.conv_kernel",
            of_net("short_conv_kernel_size", "linear_conv_kernel_dim")?,
        )?;
        keys.set_count("kda.head_dim", of_net("head_dim", "linear_head_dim")?)?;
        let n_net_heads = of_net("num_heads", "linear_num_heads")?;
        keys.facts.amend_layers(move |_, layer| {
            if let MixerDescriptor::KimiDelta(net) = &mut layer.mixer {
                net.n_heads = n_net_heads;
            }
        });
        keys.latent_widths()?;
        keys.copy_count("attention.value_length", &["head_dim"])?;
        keys.routed_experts()?;
        if config.expert_score()?.is_none() {
            keys.score_by_sigmoid();
        }
        keys.copy_count("expert_shared_count", &["num_shared_experts"])
    },
};

//! LFM2: attention in layers with KV heads, gated short convolutions in the others; dense, or with experts
//! after some dense layers.
//!
//! Source: transformers, `models/lfm2_moe/modeling_lfm2_moe.py`.

use tokenmill_backend::{ExpertScore, RopeStyle};

use crate::{FfnDescriptor, LoadError, MixerDescriptor, Presence, QkNorm};

use super::{
    Architecture, GgufKeys, HfConfig, HfLayout, Recast, gguf_experts::MoeDefaults, hf_layers::KINDS,
};

pub(super) const LFM2: Architecture = Architecture {
    name: "lfm2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            if layer.attention_mut().n_kv_heads == 0 {
                layer.mixer = config.short_conv()?;
            } else {
                layer.attention_mut().qk_norm = Some(QkNorm::Head);
            }
        }
        descriptor.tensor_names = &[("output_norm.weight", "token_embd_norm.weight")];
        Ok(descriptor)
    },
    hf_classes: &["Lfm2ForCausalLM"],
    hf_layout: LAYOUT,
    rule,
};

pub(super) const LFM2_MOE: Architecture = Architecture {
    name: "lfm2moe",
    from_gguf: |config| {
        let mut moe = config.moe(MoeDefaults {
            reads_false: false,
            ..MoeDefaults::SIGMOID
        })?;
        moe.router.choice_bias = Presence::Optional;
        config.with_experts((LFM2.from_gguf)(config)?, &moe)
    },
    hf_classes: &["Lfm2MoeForCausalLM"],
    hf_layout: LAYOUT,
    rule: |keys| {
        keys.find_router(true)?.score = Some(ExpertScore::Sigmoid);
        if keys.config.opt_bool("use_expert_bias")? == Some(false) {
            keys.facts.amend_layers(|_, layer| {
                if let FfnDescriptor::Moe(moe) = &mut layer.ffn {
                    moe.router.choice_bias = Presence::Absent;
                }
            });
        }
        let n_dense = keys.config.opt_usize("num_dense_layers")?.unwrap_or(0);
        let layers = 0..keys.sizes.n_layers;
        keys.facts.expert_layers = Some(layers.map(|layer_idx| layer_idx >= n_dense).collect());
        rule(keys)?;
        keys.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        keys.copy_count("leading_dense_block_count", &["num_dense_layers"])?;
        keys.score_by_sigmoid();
        Ok(())
    },
};

const LAYOUT: HfLayout = HfLayout {
    layer: &[
        ("operator_norm", "attn_norm"),
        ("ffn_norm", "ffn_norm"),
        ("conv.in_proj", "shortconv.in_proj"),
        ("conv.conv", "shortconv.conv"),
        ("conv.out_proj", "shortconv.out_proj"),
        ("self_attn.out_proj", "attn_output"),
        ("self_attn.q_layernorm", "attn_q_norm"),
        ("self_attn.k_layernorm", "attn_k_norm"),
        ("feed_forward.w1", "ffn_gate"),
        ("feed_forward.w3", "ffn_up"),
        ("feed_forward.w2", "ffn_down"),
        ("feed_forward.gate", "ffn_gate_inp"),
        ("feed_forward.expert_bias", "exp_probs_b.bias"),
        ("feed_forward.experts.*.w1", "ffn_gate_exps"),
        ("feed_forward.experts.*.w3", "ffn_up_exps"),
        ("feed_forward.experts.*.w2", "ffn_down_exps"),
    ],
    network: &[("embedding_norm", "output_norm")],
    recasts: &[
        ("output_norm.weight", Recast::Rename("token_embd_norm.weight")),
        ("shortconv.conv.weight", Recast::Squeeze),
    ],
    ..HfLayout::LLAMA
};

/// Returns the width of the dense network: from the configuration, or derived from its other fields.
fn dense_width(config: &HfConfig, intermediate_size: usize) -> Result<usize, LoadError> {
    let n_ff = config.opt_usize("block_ff_dim")?.unwrap_or(intermediate_size);
    if config.opt_bool("block_auto_adjust_ff_dim")? != Some(true) {
        return Ok(n_ff);
    }
    let n_ff = n_ff.saturating_mul(2) / 3;
    let factor = config.opt_f32("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let n_ff = (f64::from(factor) * n_ff as f64) as usize;
    let step = config.opt_usize("block_multiple_of")?.unwrap_or(256).max(1);
    Ok(n_ff.div_ceil(step).saturating_mul(step))
}

/// Collects the keys that dense models and those with experts have.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    let bias = config.presence("conv_bias")?;
    keys.facts.amend_layers(move |_, layer| {
        if let MixerDescriptor::ShortConv(conv) = &mut layer.mixer {
            conv.bias = bias;
        }
    });
    keys.usual()?;
    if let Some(&width) = keys.sizes.n_ff.first() {
        keys.set_count("feed_forward_length", dense_width(config, width)?)?;
    }
    keys.vocab_size()?;
    let n_layers = keys.sizes.n_layers;
    let listed = config.layers_of_two_kinds(KINDS, ["conv", "full_attention"], n_layers)?;
    // A missing list means all layers.
    let indices = config.counts("full_attn_idxs")?;
    let by_index = |layer_idx| {
        indices
            .as_ref()
            .is_none_or(|indices| indices.contains(&layer_idx))
    };
    let has_attention = listed.unwrap_or_else(|| (0..n_layers).map(by_index).collect());
    keys.kv_heads_of_layers(|layer_idx| has_attention[layer_idx])?;
    if has_attention.contains(&false) {
        config.count("conv_L_cache")?;
    }
    keys.copy_count("shortconv.l_cache", &["conv_L_cache"])
}

//! DeepSeek V2, V3 and R1, and GLM 4.7 Flash: latent attention; after some dense layers, experts with a
//! shared network, chosen by a softmax (V2) or by sigmoids with a correction bias (V3), optionally by group.
//!
//! dots.llm1 has the experts of V3 next to attention as in Qwen 3.
//!
//! Source: transformers, `models/dots1/modeling_dots1.py`, `models/deepseek_v3/modeling_deepseek_v3.py`; llama.cpp, `src/models/deepseek2.cpp`,
//! `src/models/dots1.cpp`.

use tokenmill_backend::{ExpertScore, GroupMeasure, RopeStyle};

use crate::{
    Descriptor, FfnDescriptor, LatentDescriptor, LoadError, MixerDescriptor, MoeDescriptor, Presence, QkNorm,
    RopeScaling, error::check, rope::yarn_magnitude,
};

use super::{
    Architecture, GgufConfig, GgufKeys, HfLayout, Recast, gguf_experts::MoeDefaults, hf_experts::EXPERTS,
    hf_layout::Names,
};

pub(super) const DEEPSEEK_2: Architecture = Architecture {
    name: "deepseek2",
    from_gguf,
    hf_classes: &[
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
    ],
    hf_layout: HfLayout {
        shared: &[LATENT_ATTENTION, EXPERTS],
        recasts: &[("attn_kv_b.weight", Recast::LatentKeysAndValues)],
        ..HfLayout::LLAMA
    },
    rule,
};

pub(super) const DOTS_1: Architecture = Architecture {
    name: "dots1",
    from_gguf: |config| {
        let descriptor = (config.decoder(RopeStyle::Neox)?).with_qk_norm(QkNorm::Head);
        let defaults = MoeDefaults {
            is_normalized: false,
            ..MoeDefaults::SIGMOID
        };
        config.with_experts(descriptor, &moe(config, defaults)?)
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
        keys.find_experts_behind_dense(false, &["n_shared_experts"])?;
        keys.usual()?;
        keys.routed_experts()?;
        keys.score_by_sigmoid();
        Ok(())
    },
};

/// Tensor names of latent attention.
pub(super) const LATENT_ATTENTION: Names = &[
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
];

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    let rotated_dim = config.usize("rope.dimension_count")?;
    let kv_rank = config.usize("attention.kv_lora_rank")?;
    // Files from before latent rows were stored give the widths of a head under keys of other architectures.
    let is_older = config.opt_count("attention.key_length_mla")?.is_none();
    let width = |name: &str| config.usize(&format!("attention.{name}{}", if is_older { "" } else { "_mla" }));
    let (head_dim_k, head_dim_v) = (width("key_length")?, width("value_length")?);
    check(
        "width of latent keys",
        head_dim_k,
        head_dim_k > rotated_dim,
        "more than the rope dimension count",
    )?;
    let q_rank = config.opt_usize("attention.q_lora_rank")?;
    let rope = &mut descriptor.ropes[0];
    if config.facts.is_none() {
        (rope.head_dim, rope.n_dims) = (rotated_dim, rotated_dim);
    }
    // The multiplier of the logarithm is stored divided by 10.
    let log_multiplier = 10.0 * config.opt_f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
    let mut score_factor = 1.0;
    if let RopeScaling::Yarn {
        factor, magnitude, ..
    } = &mut rope.scaling
        && config.facts.is_none()
    {
        // If the key is present, the scores are scaled instead of the rotated values.
        *magnitude = (log_multiplier != 0.0).then_some(1.0);
        let own = magnitude.unwrap_or_else(|| yarn_magnitude(*factor, 1.0));
        refuse_magnitudes(config, own)?;
        score_factor = yarn_magnitude(*factor, log_multiplier);
    }
    let n_heads = config.most_heads()?;
    let latent = LatentDescriptor {
        n_heads,
        q_rank: q_rank.filter(|&rank| rank > 0),
        kv_rank,
        plain_dim: head_dim_k.saturating_sub(rotated_dim),
        rotated_dim,
        head_dim_v,
        scale: score_scale(head_dim_k, score_factor),
        rope: Some(0),
    };
    let descriptor = descriptor.with_layers(|_, layer| layer.mixer = MixerDescriptor::Latent(latent.clone()));
    // If the file does not name the score function, a correction bias implies sigmoids: only they have one.
    let has_correction = config.tensors.keys().any(|name| name.contains(".exp_probs_b"));
    let score = if has_correction {
        ExpertScore::Sigmoid
    } else {
        ExpertScore::Softmax
    };
    let defaults = MoeDefaults {
        score,
        ..MoeDefaults::PLAIN
    };
    config.with_experts(descriptor, &moe(config, defaults)?)
}

/// Describes experts. V2 scores a group by its best expert, V3 by its two best, with the correction bias.
pub(super) fn moe(config: &GgufConfig<'_>, defaults: MoeDefaults) -> Result<MoeDescriptor, LoadError> {
    let mut moe = config.moe_with_shared(defaults, Presence::Optional)?;
    let is_v3 = moe.router.score == ExpertScore::Sigmoid;
    if let Some(groups) = moe.router.groups.as_mut().filter(|_| !is_v3) {
        groups.measure = GroupMeasure::Best;
    }
    Ok(moe)
}

/// Refuses magnitudes other than `own`, which the multiplier of the logarithm determines.
fn refuse_magnitudes(config: &GgufConfig<'_>, own: f32) -> Result<(), LoadError> {
    let whole = "rope.scaling.yarn_attn_factor";
    for (key, neutral) in [("rope.scaling.attn_factor", 1.0), (whole, own)] {
        let is_unset = key == whole && config.is_saved_by_reader();
        let found = config.opt_positive(key)?.filter(|_| !is_unset);
        if let Some(found) = found.filter(|found| (found - neutral).abs() > 1e-6 * neutral) {
            return Err(LoadError::UnusedKey {
                key: config.key(key),
                found: found.to_string(),
                arch: config.arch.to_owned(),
            });
        }
    }
    Ok(())
}

/// Returns the scale of attention scores when queries and keys are each multiplied by `factor`.
fn score_scale(head_dim_k: usize, factor: f32) -> f32 {
    factor * factor / (head_dim_k as f32).sqrt()
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    let rotated_dim = config.count("qk_rope_head_dim")?;
    let head_dim = config.count("qk_nope_head_dim")?.saturating_add(rotated_dim);
    for key in ["attention_bias", "mlp_bias"] {
        if config.is(key)? {
            return Err(config.wrong(key, "false"));
        }
    }
    if config.opt_usize("moe_layer_freq")?.unwrap_or(1) != 1 {
        return Err(config.wrong("moe_layer_freq", "1"));
    }
    find_rope(keys, head_dim, rotated_dim)?;
    find_experts(keys)?;
    // A key of its own states the multiplier of the logarithm.
    keys.states_yarn_magnitude = false;
    keys.usual()?;
    // All heads share one row of keys.
    keys.set("attention.head_count_kv", 1_u32);
    keys.latent_widths()?;
    keys.copy_count("attention.value_length", &["kv_lora_rank"])?;
    keys.vocab_size()?;
    keys.routed_experts()?;
    if !config.is("norm_topk_prob")? {
        keys.remove("expert_weights_norm");
    }
    let scaling = keys.facts.rope.as_ref().map(|rope| &rope.scaling);
    if matches!(scaling, Some(RopeScaling::Yarn { .. })) {
        // A tenth of the multiplier; the reader multiplies it by 10.
        let multiplier = config.yarn_score_multiplier()?;
        keys.set("rope.scaling.yarn_log_multiplier", 0.1 * multiplier);
    }
    Ok(())
}

/// Reads the rope of a folder, and the scale of its scores.
fn find_rope(keys: &mut GgufKeys<'_>, head_dim: usize, rotated_dim: usize) -> Result<(), LoadError> {
    let config = keys.config;
    let mut rope = config.rope("full_attention", rotated_dim)?;
    if config.opt_bool("rope_interleave")?.unwrap_or(true) {
        rope.style = RopeStyle::Norm;
    }
    let factor = match rope.scaling {
        RopeScaling::Yarn { factor, .. } => yarn_magnitude(factor, config.yarn_score_multiplier()?),
        _ => 1.0,
    };
    keys.facts.rope = Some(rope);
    keys.facts.score_scales = Some(vec![score_scale(head_dim, factor); keys.sizes.n_layers]);
    Ok(())
}

/// Reads the experts of a folder.
fn find_experts(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    keys.find_experts_behind_dense(false, &["n_shared_experts"])?;
    match config.get("topk_method").and_then(|method| method.as_str()) {
        Some("greedy") if config.class()? == "DeepseekV2ForCausalLM" => {
            keys.facts.amend_layers(|_, layer| {
                if let FfnDescriptor::Moe(moe) = &mut layer.ffn {
                    moe.router.groups = None;
                }
            })
        }
        // The other classes ignore `greedy`.
        Some("greedy" | "group_limited_greedy" | "noaux_tc") => {}
        _ => {
            return Err(config.wrong("topk_method", "greedy, group_limited_greedy or noaux_tc"));
        }
    }
    Ok(())
}

//! Which keys each architecture's GGUF file has: what it adds to, or has in place of, [`GgufKeys::usual`].
//!
//! Separate from the descriptors, which say what a network computes and not how a converter writes it down. Invariant: each rule
//! writes what the architecture's reader in this crate asks for.

use serde_json::Value as Json;
use tokenmill_gguf::{StringArray, Value};

use crate::{FfnDescriptor, HeadLayer, LoadError, MixerDescriptor, RopeScaling, SsmKind};

use super::keys::GgufKeys;

/// The context of networks that know no positions, as converters write it.
const UNBOUNDED: u32 = 1 << 20;

/// A rule.
pub(super) type Rule = fn(&mut GgufKeys<'_>) -> Result<(), LoadError>;

/// The rule of an architecture.
pub(super) fn rule_of(arch: &str) -> Option<Rule> {
    Some(match arch {
        "apertus" => apertus,
        "bert" | "nomic-bert" => bert,
        "bloom" => bloom,
        "command-r" | "cohere2" => cohere,
        "deepseek2" => deepseek2,
        "ernie4_5" | "olmoe" | "qwen2" | "qwen3" | "qwen2vl" | "seed_oss" | "starcoder2" => pooled,
        "ernie4_5-moe" => ernie4_5_moe,
        "eurobert" => |keys| {
            keys.usual()?;
            keys.set("attention.causal", false);
            keys.pooling()
        },
        "exaone4" | "olmo2" => with_windows,
        "exaone-moe" => exaone_moe,
        "falcon" => falcon,
        "falcon-h1" => falcon_h1,
        "gemma" | "gemma2" => gemma,
        "gemma3" | "gemma-embedding" => gemma3,
        "gemma3n" => gemma3n,
        "gemma4" => gemma4,
        "glm4" => |keys| {
            keys.usual()?;
            keys.rope_width()
        },
        "glm4moe" => glm4moe,
        "gpt2" => gpt2,
        "gptneox" | "stablelm" | "phi2" => partly_rotated,
        "gpt-oss" => |keys| {
            keys.usual()?;
            keys.window()?;
            keys.copy_count("expert_feed_forward_length", &["intermediate_size"])
        },
        "granite" | "granitemoe" | "granitehybrid" => granite,
        "hunyuan-dense" | "hunyuan-moe" => hunyuan,
        "kimi-linear" => kimi_linear,
        "lfm2" | "lfm2moe" => lfm2,
        "llama" => |keys| {
            keys.usual()?;
            keys.set_own_head_width()?;
            keys.vocab_size()?;
            keys.rope_width()?;
            keys.window()
        },
        "llama4" => llama4,
        "mamba" | "mamba2" => mamba,
        "minimax-m2" => |keys| {
            keys.usual()?;
            keys.copy_count("expert_feed_forward_length", &["intermediate_size"])?;
            keys.rope_width()
        },
        "mistral3" => mistral3,
        "modern-bert" => modern_bert,
        "muse-glimmer" => muse_glimmer,
        "nemotron" => |keys| {
            keys.usual()?;
            keys.vocab_size()?;
            keys.copy_number("attention.layer_norm_epsilon", &["norm_eps"])?;
            keys.rope_width()?;
            if !matches!(keys.descriptor.ropes[0].scaling, RopeScaling::Linear { .. }) {
                keys.set("rope.scaling.type", "none");
            }
            Ok(())
        },
        "nemotron_h" | "nemotron_h_moe" => nemotron_h,
        "phi3" => phi3,
        "qwen2moe" | "qwen3moe" => |keys| {
            keys.usual()?;
            keys.expert_widths()
        },
        "qwen3vl" => |keys| {
            keys.usual()?;
            let stacked = keys
                .config
                .object("vision_config")?
                .counts("deepstack_visual_indexes")?;
            keys.set_count("n_deepstack_layers", stacked.map_or(0, |layers| layers.len()))
        },
        "qwen35" | "qwen35moe" | "qwen3next" => qwen35,
        "smollm3" => |keys| {
            keys.usual()?;
            keys.vocab_size()?;
            keys.rope_width()
        },
        _ => return None,
    })
}

fn pooled(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.pooling()
}

fn apertus(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.vocab_size()?;
    keys.rope_width()
}

fn bert(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.copy_count("attention.head_count", &["num_attention_heads", "n_head"])?;
    if !keys.descriptor.ropes.is_empty() {
        keys.rope()?;
    }
    keys.norm_eps()?;
    keys.head_widths()?;
    keys.set("attention.causal", false);
    keys.pooling()?;
    labels(keys);
    Ok(())
}

/// The names of a classifier's outputs.
fn labels(keys: &mut GgufKeys<'_>) {
    let is_classifier = (keys.config.class()).is_ok_and(|class| class.ends_with("ForSequenceClassification"));
    let Some(Json::Object(labels)) = keys.config.get("id2label").filter(|_| is_classifier) else {
        return;
    };
    let mut labels: Vec<(u64, &str)> = (labels.iter())
        .filter_map(|(id, label)| Some((id.parse().ok()?, label.as_str()?)))
        .collect();
    labels.sort_unstable();
    let labels: StringArray = labels.into_iter().map(|(_, label)| label).collect();
    keys.set("classifier.output_labels", labels);
}

fn bloom(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    let n_embd = keys.descriptor.n_embd;
    keys.set_count("feed_forward_length", n_embd.saturating_mul(4))?;
    keys.heads()?;
    keys.copy_count("attention.head_count_kv", &["n_head", "num_attention_heads"])?;
    keys.norm_eps()
}

fn cohere(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.copy_number("logit_scale", &["logit_scale"])?;
    if keys.arch == "cohere2" {
        keys.window()?;
        keys.vocab_size()?;
        keys.rope_width()?;
    }
    keys.set("rope.scaling.type", "none");
    Ok(())
}

fn deepseek2(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    let latent = (keys.descriptor.layers.iter()).find_map(|layer| layer.mixer.latent());
    let latent = latent.ok_or_else(|| keys.config.wrong("kv_lora_rank", "a count"))?;
    // One row of keys is shared by all heads.
    keys.set("attention.head_count_kv", 1_u32);
    keys.set_count(
        "attention.key_length",
        latent.kv_rank.saturating_add(latent.rotated_dim),
    )?;
    keys.set_count("attention.value_length", latent.kv_rank)?;
    keys.vocab_size()?;
    if let Some(rank) = latent.q_rank {
        keys.set_count("attention.q_lora_rank", rank)?;
    }
    keys.set_count("attention.kv_lora_rank", latent.kv_rank)?;
    keys.set_count(
        "attention.key_length_mla",
        latent.plain_dim.saturating_add(latent.rotated_dim),
    )?;
    keys.set_count("attention.value_length_mla", latent.head_dim_v)?;
    keys.set_count("rope.dimension_count", latent.rotated_dim)?;
    keys.routed_experts()?;
    if matches!(
        keys.descriptor.ropes.first().map(|rope| &rope.scaling),
        Some(RopeScaling::Yarn { .. })
    ) {
        let multiplier = keys.config.yarn_score_multiplier()?;
        // A tenth, which the reader multiplies again.
        keys.set("rope.scaling.yarn_log_multiplier", 0.1 * multiplier);
    }
    Ok(())
}

fn ernie4_5_moe(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.copy_count("expert_count", &["moe_num_experts"])?;
    keys.copy_count("expert_used_count", &["moe_k"])?;
    keys.copy_count("interleave_moe_layer_step", &["moe_layer_interval"])?;
    keys.copy_count("leading_dense_block_count", &["moe_layer_start_index"])?;
    keys.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.copy_count("expert_shared_count", &["moe_num_shared_experts"])?;
    if let (Some(width), Some(n_shared)) = (
        keys.first_count(&["moe_intermediate_size"])?,
        keys.first_count(&["moe_num_shared_experts"])?,
    ) {
        keys.set_count(
            "expert_shared_feed_forward_length",
            width.saturating_mul(n_shared),
        )?;
    }
    Ok(())
}

fn with_windows(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    if keys.arch == "exaone4" {
        keys.vocab_size()?;
    }
    let has_windows = keys
        .descriptor
        .attentions()
        .any(|attention| attention.window.is_some());
    if has_windows {
        keys.window()?;
        keys.window_pattern();
    }
    Ok(())
}

fn exaone_moe(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.vocab_size()?;
    keys.window()?;
    keys.window_pattern();
    keys.routed_experts()?;
    keys.copy_count("expert_shared_count", &["num_shared_experts"])?;
    if let (Some(width), Some(n_shared)) = (
        keys.first_count(&["moe_intermediate_size"])?,
        keys.first_count(&["num_shared_experts"])?,
    ) {
        keys.set_count(
            "expert_shared_feed_forward_length",
            width.saturating_mul(n_shared),
        )?;
    }
    keys.set_count("nextn_predict_layers", 0)?;
    keys.set("rope.scaling.type", "none");
    Ok(())
}

fn falcon(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.set("tensor_data_layout", "jploski");
    let n_ff = keys.descriptor.n_embd.saturating_mul(4);
    keys.set_count("feed_forward_length", n_ff)?;
    let Some(attention) = keys.attention() else {
        return Ok(());
    };
    keys.set_count("attention.head_count", attention.n_heads)?;
    keys.set_count("attention.head_count_kv", attention.n_kv_heads)?;
    if let Some(rope) = keys.descriptor.ropes.first().filter(|rope| rope.base != 10_000.0) {
        keys.set("rope.freq_base", rope.base);
    }
    keys.norm_eps()
}

fn falcon_h1(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.vocab_size()?;
    keys.state_space()
}

fn gemma(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.heads()?;
    keys.norm_eps()?;
    keys.set_own_head_width()?;
    if let Some(rope) = keys.descriptor.ropes.first().filter(|rope| rope.base != 10_000.0) {
        keys.set("rope.freq_base", rope.base);
    }
    keys.copy_number("attn_logit_softcapping", &["attn_logit_softcapping"])?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    if keys.arch == "gemma2" {
        keys.window()?;
    }
    Ok(())
}

fn gemma3(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set_own_heads()?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.window()?;
    let n_layers = keys.descriptor.layers.len();
    let is_usual = (keys.descriptor.attentions().enumerate())
        .all(|(layer_idx, attention)| attention.window.is_some() == ((layer_idx + 1) % 6 != 0));
    if n_layers > 0 && !is_usual {
        keys.window_pattern();
    }
    keys.pooling()?;
    if let Some(pooling) = keys.descriptor.pooling.as_ref() {
        let mut n_in = keys.descriptor.n_embd;
        for layer in &pooling.head {
            if let HeadLayer::Linear { name, n_out, .. } = layer {
                keys.set_count(&format!("{name}_feat_in"), n_in)?;
                keys.set_count(&format!("{name}_feat_out"), *n_out)?;
                n_in = *n_out;
            }
        }
    }
    Ok(())
}

fn gemma3n(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set_own_heads()?;
    let widths: Vec<usize> = keys.dense_widths();
    keys.set_count_list("feed_forward_length", &widths)?;
    if let Some(softcap) = keys.descriptor.logit_softcap {
        keys.set("final_logit_softcapping", softcap);
    }
    keys.window_of_layers()?;
    let alt_up = keys
        .descriptor
        .alt_up
        .as_ref()
        .map_or(0, |alt_up| alt_up.n_streams);
    keys.set_count("altup.active_idx", 0)?;
    keys.set_count("altup.num_inputs", alt_up)?;
    keys.layer_embeddings()?;
    keys.shared_kv()?;
    let cutoffs: Vec<f32> = (keys.descriptor.layers.iter())
        .map(|layer| {
            layer
                .ffn
                .dense()
                .and_then(|dense| dense.cutoff)
                .unwrap_or(f32::NEG_INFINITY)
        })
        .collect();
    keys.set("activation_sparsity_scale", cutoffs);
    keys.window_pattern();
    Ok(())
}

fn gemma4(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    let widths: Vec<usize> = keys.dense_widths();
    keys.set_counts("feed_forward_length", &widths)?;
    let kv_heads: Vec<usize> = (keys.descriptor.attentions())
        .map(|attention| attention.n_kv_heads)
        .collect();
    keys.set_counts("attention.head_count_kv", &kv_heads)?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.window_of_layers()?;
    keys.shared_kv()?;
    keys.layer_embeddings()?;
    keys.window_pattern();
    let width_of = |is_local: bool| {
        let mut layers = keys.descriptor.attentions();
        layers
            .find(|attention| attention.window.is_some() == is_local)
            .map(|attention| attention.head_dim_k)
    };
    let (global, local) = (width_of(false), width_of(true));
    if let Some(width) = global.or(local) {
        keys.set_head_width(width)?;
        keys.set_count("rope.dimension_count", width)?;
    }
    if let Some(width) = local.or(global) {
        keys.set_count("attention.key_length_swa", width)?;
        keys.set_count("attention.value_length_swa", width)?;
        keys.set_count("rope.dimension_count_swa", width)?;
    }
    keys.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])
}

fn glm4moe(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.rope_width()?;
    keys.routed_experts()?;
    keys.set("expert_gating_func", 2_u32);
    keys.draft_layers("num_nextn_predict_layers")
}

fn gpt2(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    let widths = keys.dense_widths();
    keys.set_counts("feed_forward_length", &widths)?;
    keys.copy_count("attention.head_count", &["n_head", "num_attention_heads"])?;
    keys.norm_eps()
}

fn partly_rotated(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.rope_width()?;
    keys.heads()?;
    let is_parallel = keys.config.opt_bool("use_parallel_residual")?;
    match keys.arch {
        "gptneox" => {
            keys.remove("attention.head_count_kv");
            keys.set("use_parallel_residual", is_parallel.unwrap_or(true));
        }
        "stablelm" => keys.set("use_parallel_residual", is_parallel.unwrap_or(false)),
        _ => {}
    }
    // The readers take 10,000 where there is no base.
    if let Some(rope) = keys.descriptor.ropes.first().filter(|rope| rope.base != 10_000.0) {
        keys.set("rope.freq_base", rope.base);
    }
    keys.norm_eps()
}

fn granite(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.vocab_size()?;
    let width = keys.attention().map(|attention| attention.head_dim_k);
    if let Some(width) = width {
        keys.set_count("rope.dimension_count", width)?;
    }
    keys.copy_number("attention.scale", &["attention_multiplier"])?;
    keys.copy_number("embedding_scale", &["embedding_multiplier"])?;
    keys.copy_number("residual_scale", &["residual_multiplier"])?;
    keys.copy_number("logit_scale", &["logits_scaling"])?;
    let shared = keys.first_count(&["shared_intermediate_size"])?;
    if let Some(width) = shared.filter(|&width| width > 0) {
        keys.set_count("expert_shared_feed_forward_length", width)?;
    }
    if keys.arch == "granitehybrid" {
        let has_experts = keys
            .descriptor
            .layers
            .iter()
            .any(|layer| layer.ffn.moe().is_some());
        if !has_experts {
            let widths = keys.dense_widths();
            keys.set_counts("feed_forward_length", &widths)?;
            keys.remove("expert_shared_feed_forward_length");
        }
        keys.kv_heads_of_layers()?;
        keys.state_space()?;
        let has_rope = keys.attention().is_some_and(|attention| attention.rope.is_some());
        keys.set("rope.scaling.finetuned", has_rope);
        if !has_rope {
            // Nothing bounds positions then.
            keys.set("context_length", UNBOUNDED);
        }
    }
    Ok(())
}

fn hunyuan(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    /// What the scaled base reaches.
    const CONTEXT: u32 = 256 * 1024;

    keys.usual()?;
    keys.set_own_head_width()?;
    if keys.arch == "hunyuan-moe" {
        let width = keys.first_count(&["moe_intermediate_size", "intermediate_size"])?;
        if let Some(width) = width {
            keys.set_count("expert_feed_forward_length", width)?;
        }
        keys.copy_count("expert_shared_feed_forward_length", &["intermediate_size"])?;
        keys.copy_count("expert_used_count", &["moe_topk"])?;
        keys.copy_count("expert_shared_count", &["num_shared_expert"])?;
    }
    let rope = keys.config.rope_parameters()?;
    if rope.get("alpha").is_some() {
        if let Some(rope) = keys.descriptor.ropes.first() {
            keys.set("rope.freq_base", rope.base);
        }
        keys.set("rope.scaling.type", "none");
        keys.set("rope.scaling.factor", 1.0_f32);
        keys.set("rope.scaling.original_context_length", CONTEXT);
        keys.set("context_length", CONTEXT);
    }
    Ok(())
}

fn kimi_linear(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
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
    keys.copy_count("expert_shared_count", &["num_shared_experts"])?;
    if keys.config.get("first_k_dense_replace").is_none() {
        keys.set("leading_dense_block_count", 1_u32);
    }
    Ok(())
}

fn lfm2(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
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

fn llama4(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set_own_head_width()?;
    keys.vocab_size()?;
    keys.rope_width()?;
    keys.copy_count("feed_forward_length", &["intermediate_size_mlp"])?;
    keys.copy_count("interleave_moe_layer_step", &["interleave_moe_layer_step"])?;
    keys.copy_count("expert_feed_forward_length", &["intermediate_size"])
}

fn mamba(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.set("context_length", UNBOUNDED);
    keys.set("feed_forward_length", 0_u32);
    keys.set("attention.head_count", 0_u32);
    keys.set("attention.layer_norm_rms_epsilon", keys.descriptor.norm.eps);
    keys.state_space()
}

fn mistral3(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set_own_head_width()?;
    keys.vocab_size()?;
    keys.rope_width()?;
    keys.window()?;
    let rope = keys.config.rope_parameters()?;
    if let Some(multiplier) = rope.opt_f32("mscale_all_dim")? {
        keys.set("rope.scaling.yarn_log_multiplier", multiplier);
    }
    if let Some(scale) = rope.opt_f32("llama_4_scaling_beta")? {
        keys.set("attention.temperature_scale", scale);
    }
    Ok(())
}

fn modern_bert(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set("attention.causal", false);
    keys.pooling()?;
    let classifier: u32 = match keys.config.get("classifier_pooling").and_then(Json::as_str) {
        Some("mean") => 1,
        _ => 2,
    };
    keys.set("classifier.pooling_type", classifier);
    labels(keys);
    keys.copy_count("attention.sliding_window", &["local_attention"])?;
    keys.copy_count(
        "attention.sliding_window_pattern",
        &["global_attn_every_n_layers"],
    )?;
    keys.set("rope.scaling.type", "none");
    keys.vocab_size()?;
    if let Some(name) = keys.config.get("hidden_activation").and_then(Json::as_str) {
        keys.set("hidden_activation", Value::from(name));
    }
    Ok(())
}

fn muse_glimmer(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.copy_number("logit_scale", &["output_multiplier"])?;
    keys.window()?;
    keys.window_pattern();
    Ok(())
}

fn nemotron_h(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
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
    }
    Ok(())
}

fn phi3(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.heads()?;
    keys.rope_width()?;
    if let Some(rope) = keys.descriptor.ropes.first() {
        keys.set("rope.freq_base", rope.base);
        if let RopeScaling::LongRope { magnitude, .. } = rope.scaling {
            keys.set("rope.scaling.attn_factor", magnitude);
        }
    }
    keys.norm_eps()?;
    let original = keys.first_count(&["original_max_position_embeddings", "max_position_embeddings"])?;
    if let Some(original) = original {
        keys.set_count("rope.scaling.original_context_length", original)?;
    }
    let window = keys.config.opt_usize("sliding_window")?.unwrap_or(0);
    keys.set_count("attention.sliding_window", window)
}

fn qwen35(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
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
    keys.set("attention.recurrent_layers", recurrent);
    let interval = keys.first_count(&["full_attention_interval"])?.unwrap_or(4);
    keys.set_count("full_attention_interval", interval)?;
    keys.rope_width()
}

impl GgufKeys<'_> {
    /// The width of a head, also where the configuration leaves it out.
    fn set_own_head_width(&mut self) -> Result<(), LoadError> {
        match self.attention() {
            Some(attention) => {
                self.set_count("attention.key_length", attention.head_dim_k)?;
                self.set_count("attention.value_length", attention.head_dim_v)
            }
            None => Ok(()),
        }
    }

    /// Heads and their width, also where the configuration leaves them out.
    fn set_own_heads(&mut self) -> Result<(), LoadError> {
        if let Some(attention) = self.attention() {
            self.set_count("attention.head_count", attention.n_heads)?;
            self.set_count("attention.head_count_kv", attention.n_kv_heads)?;
        }
        self.set_own_head_width()
    }

    /// The width of the dense network of each layer; 0 where it has none.
    fn dense_widths(&self) -> Vec<usize> {
        (self.descriptor.layers.iter())
            .map(|layer| match &layer.ffn {
                FfnDescriptor::Dense(dense) => dense.n_ff,
                FfnDescriptor::Beside(beside) => beside.dense.n_ff,
                FfnDescriptor::Moe(_) | FfnDescriptor::None => 0,
            })
            .collect()
    }

    /// KV heads of each layer, 0 of those without attention.
    fn kv_heads_of_layers(&mut self) -> Result<(), LoadError> {
        let kv_heads: Vec<usize> = (self.descriptor.layers.iter())
            .map(|layer| {
                layer
                    .mixer
                    .attention()
                    .map_or(0, |attention| attention.n_kv_heads)
            })
            .collect();
        self.set_count_list("attention.head_count_kv", &kv_heads)
    }

    /// The window, also where the configuration leaves it out.
    fn window_of_layers(&mut self) -> Result<(), LoadError> {
        match self
            .descriptor
            .attentions()
            .find_map(|attention| attention.window)
        {
            Some(window) => self.set_count("attention.sliding_window", window),
            None => Ok(()),
        }
    }

    /// The width of the embeddings of each layer.
    fn layer_embeddings(&mut self) -> Result<(), LoadError> {
        let width = self
            .descriptor
            .layer_embeddings
            .as_ref()
            .map_or(0, |own| own.width);
        self.set_count("embedding_length_per_layer_input", width)
    }

    /// How many layers read the keys and values of others.
    fn shared_kv(&mut self) -> Result<(), LoadError> {
        let n_sharing = (self.descriptor.attentions())
            .filter(|attention| attention.shares_kv_of.is_some())
            .count();
        self.set_count("attention.shared_kv_layers", n_sharing)
    }

    /// Experts behind some dense layers, as DeepSeek's configurations name them.
    fn routed_experts(&mut self) -> Result<(), LoadError> {
        self.copy_count("expert_count", &["n_routed_experts", "num_experts"])?;
        self.copy_count("leading_dense_block_count", &["first_k_dense_replace"])?;
        self.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        self.copy_count("expert_shared_count", &["n_shared_experts"])?;
        self.router()
    }

    /// Layers that predict further tokens, which are counted among the others.
    fn draft_layers(&mut self, key: &str) -> Result<(), LoadError> {
        let n_drafting = self.first_count(&[key])?.unwrap_or(0);
        if n_drafting == 0 {
            return Ok(());
        }
        if n_drafting > super::MAX_DRAFT_LAYERS {
            return Err(self.config.wrong(key, "a small count of layers"));
        }
        self.set_count("block_count", self.descriptor.layers.len() + n_drafting)?;
        self.set_count("nextn_predict_layers", n_drafting)
    }

    /// The sizes of a state space model.
    fn state_space(&mut self) -> Result<(), LoadError> {
        let Some(ssm) = self.ssm().copied() else {
            return Ok(());
        };
        self.set_count("ssm.conv_kernel", ssm.n_taps)?;
        self.set_count("ssm.inner_size", ssm.n_heads.saturating_mul(ssm.head_dim))?;
        self.set_count("ssm.state_size", ssm.n_state)?;
        match ssm.kind {
            SsmKind::Mamba { dt_rank, has_norms } => {
                self.set_count("ssm.time_step_rank", dt_rank)?;
                self.set("ssm.dt_b_c_rms", has_norms);
                Ok(())
            }
            SsmKind::Mamba2 { .. } => {
                self.set_count("ssm.time_step_rank", ssm.n_heads)?;
                self.set_count("ssm.group_count", ssm.n_groups)
            }
        }
    }
}

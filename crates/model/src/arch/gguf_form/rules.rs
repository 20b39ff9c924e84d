//! The key rule of each architecture: the keys that it adds to [`GgufKeys::usual`] or writes instead.
//!
//! Descriptors say what a network computes, not how a converter writes it down. Invariant: each rule writes
//! the keys that the architecture's reader in this crate reads.

use serde_json::Value as Json;
use tokenmill_backend::Activation;
use tokenmill_gguf::{StringArray, Value};

use crate::{LoadError, RopeScaling};

use super::{
    expert_rules::{deepseek2, dots1, ernie4_5_moe, exaone_moe, glm4moe, granite, hunyuan, hy_v3, llama4},
    gemma_rules::{gemma, gemma3, gemma3n, gemma4},
    keys::GgufKeys,
    recurrent_rules::{falcon_h1, kimi_linear, lfm2, mamba, nemotron_h, qwen35},
};

/// A function that collects the keys of an architecture.
pub(super) type Rule = fn(&mut GgufKeys<'_>) -> Result<(), LoadError>;

/// Returns the rule of an architecture.
pub(super) fn rule_of(arch: &str) -> Option<Rule> {
    Some(match arch {
        "apertus" => apertus,
        "arcee" => |keys| {
            keys.usual()?;
            keys.set_own_head_width()?;
            keys.vocab_size()?;
            keys.rope_width()
        },
        "bert" | "jina-bert-v2" | "jina-bert-v3" | "nomic-bert" => bert,
        "bloom" => bloom,
        "command-r" | "cohere2" => cohere,
        "deepseek2" => deepseek2,
        "dots1" => dots1,
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
        "chatglm" | "exaone" | "glm4" => |keys| {
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
        "hy_v3" => hy_v3,
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
        "minicpm" => |keys| {
            keys.usual()?;
            keys.set("embedding_scale", keys.descriptor.embedding_scale);
            keys.set("residual_scale", keys.descriptor.residual_scale);
            keys.set("logit_scale", 1.0 / keys.descriptor.logit_scale);
            Ok(())
        },
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
        "qwen3vl" => qwen3vl,
        "qwen3vlmoe" => |keys| {
            qwen3vl(keys)?;
            keys.expert_widths()
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

fn qwen3vl(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set_count("n_deepstack_layers", keys.descriptor.n_deep_inputs)
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
    let usual = if keys.arch == "nomic-bert" {
        Activation::Silu
    } else {
        Activation::GeluErf
    };
    has_activation(keys, usual)
}

/// Refuses a network whose activation differs from the one that readers assume, since no key states it.
fn has_activation(keys: &GgufKeys<'_>, usual: Activation) -> Result<(), LoadError> {
    let mut dense = keys
        .descriptor
        .layers
        .iter()
        .filter_map(|layer| layer.ffn.dense());
    if dense.all(|dense| dense.activation == usual) {
        return Ok(());
    }
    Err(LoadError::UnsupportedFeature {
        arch: keys.arch.to_owned(),
        feature: "another activation than files of the architecture mean, as output".to_owned(),
    })
}

/// Sets the labels of a classifier.
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

fn falcon(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.set("tensor_data_layout", "jploski");
    let widths = keys.dense_widths();
    keys.set_counts("feed_forward_length", &widths)?;
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

fn gpt2(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    let widths = keys.dense_widths();
    keys.set_counts("feed_forward_length", &widths)?;
    keys.copy_count("attention.head_count", &["n_head", "num_attention_heads"])?;
    for key in ["scale_attn_weights", "scale_attn_by_inverse_layer_idx"] {
        let is_usual = key == "scale_attn_weights";
        if keys.config.opt_bool(key)?.unwrap_or(is_usual) != is_usual {
            let expected =
                "attention that is scaled by the width of heads, since files have no key for another";
            return Err(keys.config.wrong(key, expected));
        }
    }
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
    // Readers assume 10,000 if the base is missing.
    if let Some(rope) = keys.descriptor.ropes.first().filter(|rope| rope.base != 10_000.0) {
        keys.set("rope.freq_base", rope.base);
    }
    keys.norm_eps()
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
    has_activation(keys, Activation::GeluErf)?;
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

//! ERNIE 4.5 with experts: softmax experts with a correction bias and a shared network, after some dense layers.
//!
//! Source: transformers, `models/ernie4_5_moe/modeling_ernie4_5_moe.py`; llama.cpp, `src/models/ernie4-5-moe.cpp`.

use serde_json::Value;
use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, Presence, error::check};

use super::{Architecture, GgufConfig, GgufKeys, HfLayout, gguf_experts::MoeDefaults, hf_experts::EXPERTS};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "ernie4_5-moe",
    from_gguf,
    hf_classes: &["Ernie4_5_MoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    let mut moe = config.moe(MoeDefaults::NORMALIZED)?;
    moe.router.choice_bias = Presence::Optional;
    moe.shared = config.shared_experts(&moe)?;
    descriptor.head_bias = Presence::Optional;
    if let Some(shared) = &mut moe.shared {
        shared.dense.n_ff = shared_width(config, &descriptor, shared.dense.n_ff)?;
    }
    config.set_experts(&mut descriptor, &moe)?;
    Ok(descriptor)
}

/// Reads the width of the shared network from its tensors. llama.cpp's converter writes the dense width
/// divided by the number of KV heads; that is wrong if the number of shared experts differs from it.
fn shared_width(config: &GgufConfig<'_>, descriptor: &Descriptor, said: usize) -> Result<usize, LoadError> {
    let name = |layer_idx: usize| format!("blk.{layer_idx}.ffn_up_shexp.weight");
    let rows = (0..descriptor.layers.len()).map(|layer_idx| config.n_rows_of(&name(layer_idx)));
    let Some(width) = rows.max().filter(|&rows| rows > 0) else {
        return Ok(said);
    };
    let mut layers = descriptor.layers.iter();
    let is_of_converter = layers.any(|layer| {
        let (attention, dense) = (layer.mixer.attention(), layer.ffn.dense());
        attention
            .zip(dense)
            .is_some_and(|(attention, dense)| dense.n_ff / attention.n_kv_heads.max(1) == said)
    });
    check(
        "feed-forward length of the shared network",
        said,
        said == width || is_of_converter,
        "the rows of its tensors",
    )?;
    Ok(width)
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    keys.facts.rotate_neighbours();
    keys.find_biases(["use_bias", "use_bias"])?;
    keys.facts.shared_bias = config.presence("use_bias")?;
    let head_bias = keys.facts.shared_bias;
    keys.facts
        .amend(move |descriptor| descriptor.head_bias = head_bias);
    keys.find_router(true)?;
    keys.find_shared_experts(&["moe_num_shared_experts"])?;
    let n_layers = keys.sizes.n_layers;
    // Lower bound of the sum that divides the weights.
    let key = "moe_norm_min";
    if config.opt_f32(key)?.is_some_and(|least| least > 1e-6) {
        return Err(config.wrong(key, "a number that no sum of weights is below"));
    }
    let first = config.opt_usize("moe_layer_start_index")?.unwrap_or(1);
    let key = "moe_layer_end_index";
    let last = match config.get(key).and_then(Value::as_i64) {
        // -1 means the last layer.
        Some(-1) => n_layers,
        _ => config.opt_usize(key)?.unwrap_or(n_layers),
    };
    let step = config.opt_usize("moe_layer_interval")?.unwrap_or(1).max(1);
    let has_experts =
        |layer_idx: usize| (first..=last).contains(&layer_idx) && (layer_idx + 1).is_multiple_of(step);
    keys.facts.expert_layers = Some((0..n_layers).map(has_experts).collect());
    keys.usual()?;
    keys.copy_count("expert_count", &["moe_num_experts"])?;
    keys.copy_count("expert_used_count", &["moe_k"])?;
    keys.copy_count("interleave_moe_layer_step", &["moe_layer_interval"])?;
    keys.copy_count("leading_dense_block_count", &["moe_layer_start_index"])?;
    keys.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.copy_count("expert_shared_count", &["moe_num_shared_experts"])?;
    if let (Some(width), Some(n_shared)) = (
        keys.config.opt_first_usize(&["moe_intermediate_size"])?,
        keys.config.opt_first_usize(&["moe_num_shared_experts"])?,
    ) {
        keys.set_count(
            "expert_shared_feed_forward_length",
            width.saturating_mul(n_shared),
        )?;
    }
    Ok(())
}

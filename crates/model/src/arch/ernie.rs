//! ERNIE 4.5: Llama with adjacent rope pairs in folders too; dense, or with softmax experts with a correction bias and a
//! shared network after some dense layers.
//!
//! Source: transformers, `models/ernie4_5/modeling_ernie4_5.py`, `models/ernie4_5_moe/modeling_ernie4_5_moe.py`; llama.cpp,
//! `src/models/ernie4-5-moe.cpp`.

use serde_json::Value;
use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, Presence, error::check};

use super::{Architecture, GgufConfig, HfLayout, gguf_experts::MoeDefaults, hf_experts::EXPERTS};

pub(super) const DENSE: Architecture = Architecture {
    name: "ernie4_5",
    from_gguf: |config| config.decoder(RopeStyle::Norm),
    hf_classes: &["Ernie4_5ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.facts.rotate_neighbours();
        keys.find_biases(["use_bias", "use_bias"])?;
        keys.usual()?;
        keys.pooling()
    },
};

pub(super) const MOE: Architecture = Architecture {
    name: "ernie4_5-moe",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        let mut moe = config.moe_with_shared(MoeDefaults::NORMALIZED, Presence::Optional)?;
        descriptor.head_bias = Presence::Optional;
        if let Some(shared) = &mut moe.shared {
            shared.dense.n_ff = shared_width(config, &descriptor, shared.dense.n_ff)?;
        }
        config.with_experts(descriptor, &moe)
    },
    hf_classes: &["Ernie4_5_MoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        let config = keys.config;
        keys.facts.rotate_neighbours();
        keys.find_biases(["use_bias", "use_bias"])?;
        let bias = config.presence("use_bias")?;
        keys.facts.shared_bias = bias;
        keys.facts.amend(move |descriptor| descriptor.head_bias = bias);
        keys.find_router(true)?;
        keys.find_shared_experts(&["moe_num_shared_experts"])?;
        // Lower bound of the sum that divides the weights.
        let key = "moe_norm_min";
        if config.opt_f32(key)?.is_some_and(|least| least > 1e-6) {
            return Err(config.wrong(key, "a number that no sum of weights is below"));
        }
        let n_layers = keys.sizes.n_layers;
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
        for (name, field) in [
            ("expert_count", "moe_num_experts"),
            ("expert_used_count", "moe_k"),
            ("interleave_moe_layer_step", "moe_layer_interval"),
            ("leading_dense_block_count", "moe_layer_start_index"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_count", "moe_num_shared_experts"),
        ] {
            keys.copy_count(name, &[field])?;
        }
        keys.shared_width()
    },
};

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

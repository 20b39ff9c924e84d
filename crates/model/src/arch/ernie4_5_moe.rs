//! ERNIE 4.5 with experts: softmax experts with a correction bias and a shared network, behind some dense layers.
//!
//! Source: transformers, `models/ernie4_5_moe/modeling_ernie4_5_moe.py`; llama.cpp, `src/models/ernie4-5-moe.cpp`.

use serde_json::Value;
use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, Presence};

use super::{
    Architecture, GgufConfig, HfConfig, HfLayout, ernie4_5,
    gguf_experts::{MoeDefaults, set_experts},
    hf_experts::EXPERTS,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "ernie4_5-moe",
    from_gguf,
    hf_classes: &["Ernie4_5_MoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    from_hf,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    let mut moe = config.moe(MoeDefaults::NORMALIZED)?;
    moe.router.choice_bias = Presence::Optional;
    moe.shared = config.shared_experts(&moe)?;
    descriptor.head_bias = Presence::Optional;
    // What files say of the shared network's width is not its width where the counts of heads and experts differ.
    if let Some(shared) = &mut moe.shared {
        let name = |layer_idx: usize| format!("blk.{layer_idx}.ffn_up_shexp.weight");
        let rows = (0..descriptor.layers.len())
            .map(|layer_idx| config.n_rows_of(&name(layer_idx)))
            .max();
        shared.dense.n_ff = rows.filter(|&rows| rows > 0).unwrap_or(shared.dense.n_ff);
    }
    config.set_experts(&mut descriptor, &moe)?;
    Ok(descriptor)
}

fn from_hf(config: &HfConfig) -> Result<Descriptor, LoadError> {
    let mut descriptor = (ernie4_5::ARCHITECTURE.from_hf)(config)?;
    let mut moe = config.moe(true)?;
    moe.router.choice_bias = Presence::Optional;
    moe.shared = config.shared_experts(&moe, &["moe_num_shared_experts"])?;
    descriptor.head_bias = config.presence("use_bias")?;
    if let Some(shared) = &mut moe.shared {
        shared.dense.bias = descriptor.head_bias;
    }
    let n_layers = descriptor.layers.len();
    // The least sum that weights are divided by.
    let key = "moe_norm_min";
    if config.opt_f32(key)?.is_some_and(|least| least > 1e-6) {
        return Err(config.wrong(key, "a number that no sum of weights is below"));
    }
    let first = config.opt_usize("moe_layer_start_index")?.unwrap_or(1);
    let key = "moe_layer_end_index";
    let last = match config.get(key).and_then(Value::as_i64) {
        // The last layer.
        Some(-1) => n_layers,
        _ => config.opt_usize(key)?.unwrap_or(n_layers),
    };
    let step = config.opt_usize("moe_layer_interval")?.unwrap_or(1).max(1);
    set_experts(&mut descriptor, &moe, |layer_idx| {
        (first..=last).contains(&layer_idx) && (layer_idx + 1).is_multiple_of(step)
    });
    Ok(descriptor)
}

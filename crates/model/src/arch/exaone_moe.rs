//! EXAONE with experts: the windows, norms and positions of EXAONE 4 with norms before, experts chosen by sigmoids with a
//! correction bias, and a shared network.
//!
//! Source: transformers, `models/exaone_moe/modeling_exaone_moe.py`; llama.cpp, `src/models/exaone-moe.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, Presence, QkNorm};

use super::{
    Architecture, GgufConfig, GgufKeys, HfLayout, exaone4, gguf_experts::MoeDefaults, hf_experts::EXPERTS,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "exaone-moe",
    from_gguf,
    hf_classes: &["ExaoneMoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    config.set_windows(&mut descriptor, 4)?;
    let has_windows = descriptor
        .attentions()
        .any(|attention| attention.window.is_some());
    complete(&mut descriptor, has_windows);
    config.set_window_rope(&mut descriptor)?;
    let mut moe = config.moe(MoeDefaults::SIGMOID)?;
    moe.router.choice_bias = Presence::Required;
    moe.shared = config.shared_experts(&moe)?;
    config.set_experts(&mut descriptor, &moe)?;
    Ok(descriptor)
}

/// Removes the positions of full-attention layers.
fn complete(descriptor: &mut Descriptor, has_windows: bool) {
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        attention.qk_norm = Some(QkNorm::Head);
        if has_windows && attention.window.is_none() {
            attention.rope = None;
        }
    }
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let period = exaone4::period(keys.config)?;
    keys.find_windows(|layer_idx| !(layer_idx + 1).is_multiple_of(period))?;
    // If a window is configured, only layers with a window have positions, even if no layer has one.
    if keys.config.get("sliding_window").is_some() {
        let windows = keys.facts.windows.iter();
        keys.facts.has_rope = Some(windows.map(Option::is_some).collect());
    }
    keys.find_router(true)?;
    keys.find_shared_experts(&["num_shared_experts"])?;
    keys.facts.expert_layers = Some(keys.config.expert_layers_behind_dense(keys.sizes.n_layers)?);
    keys.usual()?;
    keys.vocab_size()?;
    keys.window()?;
    keys.window_pattern();
    keys.routed_experts()?;
    keys.copy_count("expert_shared_count", &["num_shared_experts"])?;
    if let (Some(width), Some(n_shared)) = (
        keys.config.opt_first_usize(&["moe_intermediate_size"])?,
        keys.config.opt_first_usize(&["num_shared_experts"])?,
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

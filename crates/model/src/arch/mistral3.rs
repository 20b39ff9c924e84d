//! Mistral 3 and Ministral 3, their text part: Llama, in some versions with YaRN and a temperature of attention that grows
//! with the position.
//!
//! Source: transformers, `models/ministral3/modeling_ministral3.py`; llama.cpp, `src/models/mistral3.cpp`.

use tokenmill_backend::{RopeStyle, Temperature};

use crate::{Descriptor, LoadError};

use super::{Architecture, GgufKeys, HfLayout, Recast, hf_layout::VISION};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mistral3",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        if let Some(scale) = config.opt_positive("attention.temperature_scale")? {
            let interval = config.usize("rope.scaling.original_context_length")?;
            set_temperature(&mut descriptor, scale, interval);
        }
        Ok(descriptor)
    },
    hf_classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
    hf_layout: HfLayout {
        ignored: VISION,
        recasts: Recast::NEIGHBOURS,
        ..HfLayout::LLAMA
    },
    rule,
};

fn set_temperature(descriptor: &mut Descriptor, scale: f32, interval: usize) {
    for layer in &mut descriptor.layers {
        layer.attention_mut().temperature = Some(Temperature {
            scale,
            interval,
            offset: 0,
        });
    }
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_windows(|_| true)?;
    // A key of its own states the multiplier of the logarithm.
    keys.states_yarn_magnitude = false;
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
        let interval = (rope.opt_usize("original_max_position_embeddings")?)
            .ok_or_else(|| rope.wrong("original_max_position_embeddings", "a count"))?;
        keys.set("attention.temperature_scale", scale);
        // A rope without YaRN has the interval too.
        keys.set_count("rope.scaling.original_context_length", interval)?;
    }
    Ok(())
}

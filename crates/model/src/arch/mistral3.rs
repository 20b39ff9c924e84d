//! Mistral 3 and Ministral 3, their text part: Llama, in some versions with YaRN and a temperature of attention that grows
//! with the position.
//!
//! Source: transformers, `models/ministral3/modeling_ministral3.py`; llama.cpp, `src/models/mistral3.cpp`.

use tokenmill_backend::{RopeStyle, Temperature};

use crate::Descriptor;

use super::{Architecture, GgufRows, HfLayout, hf_layout::VISION};

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
        gguf_rows: GgufRows::Neighbours,
        ..HfLayout::LLAMA
    },
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        config.set_windows(&mut descriptor, |_| true)?;
        let rope = config.rope_parameters()?;
        if let Some(scale) = rope.opt_f32("llama_4_scaling_beta")? {
            let interval = (rope.opt_usize("original_max_position_embeddings")?)
                .ok_or_else(|| rope.wrong("original_max_position_embeddings", "a count"))?;
            set_temperature(&mut descriptor, scale, interval);
        }
        Ok(descriptor)
    },
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

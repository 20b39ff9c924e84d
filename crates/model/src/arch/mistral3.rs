//! Mistral 3 and Ministral 3, their text part: Llama, in some versions with YaRN and a temperature of attention that grows
//! with the position.
//!
//! Source: transformers, `models/ministral3/modeling_ministral3.py`; llama.cpp, `src/models/mistral3.cpp`.

use tokenmill_backend::RopeStyle;

use super::{Architecture, HfLayout, hf_layout::VISION};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mistral3",
    from_gguf: |config| {
        if config.opt_positive("attention.temperature_scale")?.is_some() {
            return Err(config.unsupported("a temperature of attention by position"));
        }
        config.decoder(RopeStyle::Norm)
    },
    hf_classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
    hf_layout: HfLayout {
        ignored: VISION,
        ..HfLayout::LLAMA
    },
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        config.set_windows(&mut descriptor, |_| true)?;
        if config
            .object("rope_parameters")?
            .get("llama_4_scaling_beta")
            .is_some()
        {
            return Err(config.wrong(
                "rope_parameters",
                "no `llama_4_scaling_beta`, which is not supported",
            ));
        }
        Ok(descriptor)
    },
};

//! GLM 4 before the versions with norms after each half: rope over half of a head, gate and up in one tensor.
//!
//! Source: transformers, `models/glm/modeling_glm.py`; llama.cpp, `src/models/chatglm.cpp`.

use tokenmill_backend::RopeStyle;

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "chatglm",
    from_gguf: |config| config.decoder(RopeStyle::Norm),
    hf_classes: &["GlmForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        // Folders have neighbours as rope pairs too.
        keys.facts.rotate_neighbours();
        keys.facts.qkv_bias = Some(keys.config.presence("attention_bias")?);
        keys.usual()?;
        keys.rope_width()
    },
};

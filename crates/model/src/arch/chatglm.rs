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
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        // Folders have neighbours as rope pairs too.
        descriptor.ropes[0].style = RopeStyle::Norm;
        let bias = config.presence("attention_bias")?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = bias;
        }
        Ok(descriptor)
    },
    rule: |keys| {
        keys.usual()?;
        keys.rope_width()
    },
};

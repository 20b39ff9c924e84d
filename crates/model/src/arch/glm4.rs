//! GLM 4: norms before and after each half, rope over half of a head, gate and up in one tensor. The text models of GLM 4.1V, GLM 4.6V
//! Flash and GLM OCR have the same network.
//!
//! Source: transformers, `models/glm4/modeling_glm4.py`; llama.cpp, `src/models/glm4.cpp`.

use tokenmill_backend::{RopeAxes, RopeStyle};

use crate::NormPlacement;

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm4",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Sections)?;
        // For text models with vision, the converter reorders the rows of q and k into halves.
        if config.has_rope_sections() {
            descriptor.ropes[0].style = RopeStyle::Neox;
        }
        for layer in &mut descriptor.layers {
            layer.norms = NormPlacement::PreAndPost;
        }
        Ok(descriptor)
    },
    hf_classes: &["Glm4ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("post_self_attn_layernorm", "post_attention_norm"),
            ("post_mlp_layernorm", "post_ffw_norm"),
        ],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        // Folders have neighbours as rope pairs too.
        keys.facts.rotate_neighbours();
        keys.facts.qkv_bias = Some(keys.config.presence("attention_bias")?);
        keys.usual()?;
        keys.rope_width()
    },
};

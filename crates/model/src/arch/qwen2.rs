//! Qwen 2 and 2.5, and the text part of Qwen 2 VL and 2.5 VL: biases on q, k and v.

use tokenmill_backend::{RopeAxes, RopeStyle};

use crate::{Descriptor, LoadError, Presence};

use super::{Architecture, GgufConfig, HfLayout, hf_layout::VISION};

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    from_gguf,
    hf_classes: &["Qwen2ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.find_windows_if_used()?;
        keys.usual()?;
        keys.pooling()
    },
};

pub(super) const QWEN2_VL: Architecture = Architecture {
    name: "qwen2vl",
    from_gguf: |config| {
        let mut descriptor = from_gguf(config)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Sections)?;
        Ok(descriptor)
    },
    hf_classes: &[
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
    ],
    hf_layout: HfLayout {
        ignored: VISION,
        ..HfLayout::LLAMA
    },
    rule: QWEN2.rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qkv_bias = Presence::Required;
    }
    Ok(descriptor)
}

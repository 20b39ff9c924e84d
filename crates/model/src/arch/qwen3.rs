//! Qwen 3, and the text part of Qwen 3 VL: each head of q and k is normed before rope.

use tokenmill_backend::{RopeAxes, RopeStyle};

use crate::{Descriptor, LoadError, QkNorm};

use super::{Architecture, GgufConfig, HfLayout, hf_layout::VISION};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    from_gguf,
    hf_classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        keys.find_windows_if_used()?;
        keys.usual()?;
        keys.pooling()
    },
};

pub(super) const QWEN3_VL: Architecture = Architecture {
    name: "qwen3vl",
    from_gguf: |config| {
        let mut descriptor = from_gguf(config)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Interleaved)?;
        Ok(descriptor)
    },
    hf_classes: &["Qwen3VLForConditionalGeneration"],
    hf_layout: HfLayout {
        ignored: VISION,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        keys.find_windows_if_used()?;
        keys.usual()?;
        let vision = keys.config.object("vision_config")?;
        let stacked = vision.counts("deepstack_visual_indexes")?;
        keys.set_count("n_deepstack_layers", stacked.map_or(0, |layers| layers.len()))
    },
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qk_norm = Some(QkNorm::Head);
    }
    Ok(descriptor)
}

//! Qwen 3, and the text part of Qwen 3 VL: each head of q and k is normed before rope.

use tokenmill_backend::{RopeAxes, RopeStyle};

use crate::{Descriptor, LoadError, QkNorm};

use super::{Architecture, GgufConfig, HfConfig, HfLayout, hf_layout::VISION};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    from_gguf,
    hf_classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    hf_layout: HfLayout::LLAMA,
    from_hf,
    rule: |keys| {
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
    from_hf: |config| {
        let mut descriptor = from_hf(config)?;
        config.set_image_inputs(&mut descriptor, RopeAxes::Interleaved)?;
        Ok(descriptor)
    },
    rule: |keys| {
        keys.usual()?;
        keys.set_count("n_deepstack_layers", keys.descriptor.n_deep_inputs)
    },
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qk_norm = Some(QkNorm::Head);
    }
    Ok(descriptor)
}

fn from_hf(config: &HfConfig) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder()?;
    let bias = config.presence("attention_bias")?;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qk_norm = Some(QkNorm::Head);
        layer.attention_mut().qkv_bias = bias;
        layer.attention_mut().output_bias = bias;
    }
    config.set_windows_if_used(&mut descriptor)?;
    Ok(descriptor)
}

//! ERNIE 4.5, dense: Llama with adjacent rope pairs in folders too.
//!
//! Source: transformers, `models/ernie4_5/modeling_ernie4_5.py`.

use tokenmill_backend::RopeStyle;

use crate::Presence;

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "ernie4_5",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = Presence::Optional;
            layer.attention_mut().output_bias = Presence::Optional;
            layer.dense_mut().bias = Presence::Optional;
        }
        Ok(descriptor)
    },
    hf_classes: &["Ernie4_5ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        descriptor.ropes[0].style = RopeStyle::Norm;
        let bias = config.presence("use_bias")?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = bias;
            layer.attention_mut().output_bias = bias;
            layer.dense_mut().bias = bias;
        }
        Ok(descriptor)
    },
    rule: |keys| {
        keys.usual()?;
        keys.pooling()
    },
};

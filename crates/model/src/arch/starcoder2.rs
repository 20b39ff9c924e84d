//! StarCoder 2: layer norms and biases everywhere, no gate.
//!
//! Source: transformers, `models/starcoder2/modeling_starcoder2.py`; llama.cpp, `src/models/starcoder2.cpp`.

use tokenmill_backend::{Activation, NormKind, RopeStyle};

use crate::{Descriptor, Presence};

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "starcoder2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            layer.dense_mut().activation = Activation::GeluTanh;
        }
        finish(&mut descriptor, Presence::Optional);
        Ok(descriptor)
    },
    hf_classes: &["Starcoder2ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_biases(["use_bias", "use_bias"])?;
        keys.find_windows(|_| true)?;
        keys.usual()?;
        keys.pooling()
    },
};

fn finish(descriptor: &mut Descriptor, bias: Presence) {
    descriptor.norm.kind = NormKind::Layer;
    descriptor.norm.bias = Presence::Required;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qkv_bias = bias;
        layer.attention_mut().output_bias = bias;
        layer.dense_mut().is_gated = false;
        layer.dense_mut().bias = bias;
    }
}

//! Nemotron 3 and 4, dense: layer norms whose weights folders store as distances from 1, squared ReLU without a gate, rope over
//! a part of each head.
//!
//! Source: transformers, `models/nemotron/modeling_nemotron.py`; llama.cpp, `src/models/nemotron.cpp`.

use tokenmill_backend::{Activation, NormKind, RopeStyle};

use crate::{Descriptor, Presence, RopeScaling};

use super::{Architecture, Change, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        finish(&mut descriptor, [Presence::Optional; 2]);
        Ok(descriptor)
    },
    hf_classes: &["NemotronForCausalLM"],
    hf_layout: HfLayout {
        changes: &[("norm.weight", Change::AddOne)],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.config.require_activation(Activation::ReluSquared, "relu2")?;
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        keys.usual()?;
        keys.vocab_size()?;
        keys.copy_number("attention.layer_norm_epsilon", &["norm_eps"])?;
        keys.rope_width()?;
        if !matches!(keys.sizes.rope.scaling, RopeScaling::Linear { .. }) {
            keys.set("rope.scaling.type", "none");
        }
        Ok(())
    },
};

fn finish(descriptor: &mut Descriptor, [attention_bias, ffn_bias]: [Presence; 2]) {
    descriptor.norm.kind = NormKind::Layer;
    descriptor.norm.bias = Presence::Required;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qkv_bias = attention_bias;
        layer.attention_mut().output_bias = attention_bias;
        let dense = layer.dense_mut();
        dense.bias = ffn_bias;
        dense.activation = Activation::ReluSquared;
        dense.is_gated = false;
    }
}

//! Arcee's foundation models: Llama with squared ReLU in the place of a gate.
//!
//! Source: transformers, `models/arcee/modeling_arcee.py`; llama.cpp, `src/models/arcee.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use super::{Architecture, HfLayout, Recast};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "arcee",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        for layer in &mut descriptor.layers {
            let dense = layer.dense_mut();
            dense.activation = Activation::ReluSquared;
            dense.is_gated = false;
        }
        Ok(descriptor)
    },
    hf_classes: &["ArceeForCausalLM"],
    hf_layout: HfLayout {
        recasts: Recast::NEIGHBOURS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        keys.usual()?;
        keys.set_own_head_width()?;
        keys.vocab_size()?;
        keys.rope_width()
    },
};

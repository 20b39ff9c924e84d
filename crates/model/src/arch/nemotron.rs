//! Nemotron 3 and 4, dense: layer norms whose weights folders store as distances from 1, squared ReLU without a gate, rope over
//! a part of each head.
//!
//! Source: transformers, `models/nemotron/modeling_nemotron.py`; llama.cpp, `src/models/nemotron.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Presence, RopeScaling};

use super::{Architecture, Change, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron",
    from_gguf: |config| {
        Ok((config.decoder(RopeStyle::Neox)?)
            .with_layer_norms(Presence::Required)
            .with_biases(Presence::Optional)
            .without_gate(Activation::ReluSquared))
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

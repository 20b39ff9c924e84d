//! StarCoder 2: layer norms and biases everywhere, no gate.
//!
//! Source: transformers, `models/starcoder2/modeling_starcoder2.py`; llama.cpp, `src/models/starcoder2.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::Presence;

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "starcoder2",
    from_gguf: |config| {
        Ok((config.decoder(RopeStyle::Neox)?)
            .with_layer_norms(Presence::Required)
            .with_biases(Presence::Optional)
            .without_gate(Activation::GeluTanh))
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

//! ERNIE 4.5, dense: Llama with adjacent rope pairs in folders too.
//!
//! Source: transformers, `models/ernie4_5/modeling_ernie4_5.py`.

use tokenmill_backend::RopeStyle;

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "ernie4_5",
    from_gguf: |config| config.decoder(RopeStyle::Norm),
    hf_classes: &["Ernie4_5ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.facts.rotate_neighbours();
        keys.find_biases(["use_bias", "use_bias"])?;
        keys.usual()?;
        keys.pooling()
    },
};

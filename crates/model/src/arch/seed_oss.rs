//! Seed-OSS: Llama with biases on q, k and v.
//!
//! Source: transformers, `models/seed_oss/modeling_seed_oss.py`; llama.cpp, `src/models/seed-oss.cpp`.

use tokenmill_backend::RopeStyle;

use super::{Architecture, HfLayout, Recast};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "seed_oss",
    from_gguf: |config| config.decoder(RopeStyle::Neox),
    hf_classes: &["SeedOssForCausalLM"],
    hf_layout: HfLayout {
        recasts: &[Recast::POST_ATTENTION],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        keys.facts.output_bias = Some(keys.config.presence("attention_out_bias")?);
        keys.usual()?;
        keys.pooling()
    },
};

//! MiniCPM 1 and 2: Llama with multipliers of embeddings, residuals and logits, which older files omit.
//!
//! Source: llama.cpp, `src/models/minicpm.cpp` and `conversion/minicpm.py`. The default multipliers are those
//! of the reader's first version, which multiplies logits by 256 over the width.

use super::{Architecture, HfLayout, Recast, granite};

/// Default multipliers.
const EMBEDDING_SCALE: f32 = 12.0;
const DEPTH_SCALE: f32 = 1.4;
const LOGIT_WIDTH: f32 = 256.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minicpm",
    from_gguf: |config| {
        let mut descriptor = granite::dense_from_gguf(config)?;
        if config.opt_positive("embedding_scale")?.is_none() {
            descriptor.embedding_scale = EMBEDDING_SCALE;
        }
        if config.opt_positive("residual_scale")?.is_none() {
            descriptor.residual_scale = DEPTH_SCALE / (descriptor.layers.len() as f32).sqrt();
        }
        if config.opt_positive("logit_scale")?.is_none() {
            descriptor.logit_scale = LOGIT_WIDTH / descriptor.n_embd as f32;
        }
        Ok(descriptor)
    },
    hf_classes: &["MiniCPMForCausalLM"],
    hf_layout: HfLayout {
        recasts: Recast::NEIGHBOURS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.usual()?;
        let config = keys.config;
        let depth = (keys.sizes.n_layers as f32).sqrt();
        let logit_scale = config.f32("dim_model_base")? / keys.sizes.n_embd as f32;
        keys.set("embedding_scale", config.f32("scale_emb")?);
        keys.set("residual_scale", config.f32("scale_depth")? / depth);
        keys.set("logit_scale", 1.0 / logit_scale);
        // The inverse of the inverse may be another number.
        keys.facts
            .amend(move |descriptor| descriptor.logit_scale = logit_scale);
        Ok(())
    },
};

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
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        descriptor.embedding_scale = config.f32("scale_emb")?;
        descriptor.residual_scale = config.f32("scale_depth")? / (descriptor.layers.len() as f32).sqrt();
        descriptor.logit_scale = config.f32("dim_model_base")? / descriptor.n_embd as f32;
        Ok(descriptor)
    },
    rule: |keys| {
        keys.usual()?;
        keys.set("embedding_scale", keys.descriptor.embedding_scale);
        keys.set("residual_scale", keys.descriptor.residual_scale);
        keys.set("logit_scale", 1.0 / keys.descriptor.logit_scale);
        Ok(())
    },
};

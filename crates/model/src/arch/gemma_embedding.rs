//! EmbeddingGemma: Gemma 3's layers, seen in both directions, their mean, and two matrices.
//!
//! Source: transformers, `models/gemma3/modeling_gemma3.py` with `use_bidirectional_attention`; llama.cpp,
//! `src/models/gemma-embedding.cpp`.

use tokenmill_backend::Pooling;

use crate::{Descriptor, PoolingDescriptor};

use super::{
    Architecture, HfLayout,
    encoder::{HeadStep, make_encoder},
    gemma3,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma-embedding",
    from_gguf: |config| {
        let pooling = config.pooling(HeadStep::Tanh, Pooling::First)?;
        Ok(finish((gemma3::ARCHITECTURE.from_gguf)(config)?, pooling))
    },
    hf_classes: &["Gemma3TextModel"],
    hf_layout: HfLayout {
        ignored: &[],
        ..gemma3::ARCHITECTURE.hf_layout
    },
    from_hf: |config| {
        if !config.is("use_bidirectional_attention")? {
            return Err(config.wrong("use_bidirectional_attention", "true"));
        }
        let pooling = config.sentence_pooling()?;
        Ok(finish((gemma3::ARCHITECTURE.from_hf)(config)?, pooling))
    },
    rule: gemma3::ARCHITECTURE.rule,
};

fn finish(mut descriptor: Descriptor, pooling: Option<PoolingDescriptor>) -> Descriptor {
    make_encoder(&mut descriptor);
    descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
    descriptor
}

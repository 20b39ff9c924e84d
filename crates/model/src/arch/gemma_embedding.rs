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
    rule: |keys| {
        let key = "use_bidirectional_attention";
        if !keys.config.is(key)? {
            return Err(keys.config.wrong(key, "true"));
        }
        keys.facts.pooling = keys.config.sentence_pooling()?;
        (gemma3::ARCHITECTURE.rule)(keys)
    },
};

fn finish(mut descriptor: Descriptor, pooling: Option<PoolingDescriptor>) -> Descriptor {
    make_encoder(&mut descriptor);
    descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
    descriptor
}

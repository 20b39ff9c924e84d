//! EuroBERT: Llama's layers, seen in both directions.
//!
//! Source: `modeling_eurobert.py` of the published models; llama.cpp, `src/models/eurobert.cpp`.

use tokenmill_backend::{Pooling, RopeStyle};

use crate::PoolingDescriptor;

use super::{
    Architecture, HfLayout,
    encoder::{HeadStep, make_encoder},
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "eurobert",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        make_encoder(&mut descriptor);
        let pooling = config.pooling(HeadStep::Tanh, Pooling::First)?;
        descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
        Ok(descriptor)
    },
    hf_classes: &["EuroBertModel"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        keys.facts.pooling = keys.config.sentence_pooling()?;
        keys.usual()?;
        keys.set("attention.causal", false);
        keys.pooling()
    },
};

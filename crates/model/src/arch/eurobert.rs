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
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        let bias = config.presence("attention_bias")?;
        let mlp_bias = config.presence("mlp_bias")?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = bias;
            layer.attention_mut().output_bias = bias;
            layer.dense_mut().bias = mlp_bias;
        }
        make_encoder(&mut descriptor);
        let pooling = config.sentence_pooling()?;
        descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
        Ok(descriptor)
    },
    rule: |keys| {
        keys.usual()?;
        keys.set("attention.causal", false);
        keys.pooling()
    },
};

//! Nomic BERT: BERT with rope, a gated feed-forward network and no biases except in norms.
//!
//! Source: transformers, `models/nomic_bert/modeling_nomic_bert.py`; llama.cpp, `src/models/bert.cpp`.

use tokenmill_backend::{Activation, Pooling, RopeStyle};

use crate::{Descriptor, PoolingDescriptor, Presence};

use super::{
    Architecture, HfLayout,
    encoder::{self, HeadStep, make_encoder, make_post_norm},
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nomic-bert",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        finish(&mut descriptor);
        let pooling = config.pooling(HeadStep::Tanh, Pooling::First)?;
        descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
        Ok(descriptor)
    },
    hf_classes: &["NomicBertModel"],
    hf_layout: HfLayout {
        prefixes: &["bert."],
        layers: "encoder.layers.",
        layer: &[
            ("attn.Wqkv", "attn_qkv"),
            ("attn.out_proj", "attn_output"),
            ("norm1", "attn_output_norm"),
            ("mlp.fc11", "ffn_up"),
            ("mlp.fc12", "ffn_gate"),
            ("mlp.fc2", "ffn_down"),
            ("norm2", "layer_output_norm"),
        ],
        network: &[
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.token_type_embeddings", "token_types"),
            ("emb_ln", "token_embd_norm"),
        ],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        for key in ["prenorm", "rotary_emb_interleaved", "causal"] {
            if keys.config.is(key)? {
                return Err(keys.config.wrong(key, "false"));
            }
        }
        keys.facts.activation = Some(Activation::Silu);
        keys.facts.pooling = keys.config.sentence_pooling()?;
        encoder::write_keys(keys, true)?;
        if let Some(n_ctx) = keys.config.opt_usize("max_trained_positions")? {
            keys.facts.n_ctx_train = n_ctx;
            keys.set_count("context_length", n_ctx)?;
        }
        Ok(())
    },
};

fn finish(descriptor: &mut Descriptor) {
    make_encoder(descriptor);
    make_post_norm(descriptor);
    for layer in &mut descriptor.layers {
        layer.attention_mut().qkv_bias = Presence::Optional;
        layer.attention_mut().output_bias = Presence::Optional;
        layer.dense_mut().activation = Activation::Silu;
        layer.dense_mut().bias = Presence::Optional;
    }
}

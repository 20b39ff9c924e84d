//! BERT, and RoBERTa's family, which differs in its positions: each half is normed after its sum, positions are learned,
//! biases are everywhere.
//!
//! Source: transformers, `models/bert/modeling_bert.py`, `models/xlm_roberta/modeling_xlm_roberta.py`; llama.cpp,
//! `src/models/bert.cpp`.

use tokenmill_backend::{Activation, Pooling, RopeStyle};

use crate::{Descriptor, LoadError, PoolingDescriptor, Presence};

use super::{
    Architecture, Change, GgufKeys, HfLayout, Recast,
    encoder::{self, HeadStep, make_encoder, make_post_norm, remove_rope},
};

/// The number of rows of RoBERTa's position table that no token uses: positions begin after the padding token's.
const UNUSED_POSITIONS: usize = 2;

pub(super) const BERT: Architecture = Architecture {
    name: "bert",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            layer.dense_mut().activation = Activation::GeluErf;
        }
        finish(&mut descriptor);
        let pooling = config.pooling(HeadStep::Tanh, Pooling::First)?;
        descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
        Ok(descriptor)
    },
    hf_classes: &["BertModel", "BertForSequenceClassification"],
    hf_layout: LAYOUT,
    rule: |keys| rule(keys, 0),
};

pub(super) const ROBERTA: Architecture = Architecture {
    name: "bert",
    from_gguf: BERT.from_gguf,
    hf_classes: &[
        "RobertaModel",
        "RobertaForSequenceClassification",
        "XLMRobertaModel",
        "XLMRobertaForSequenceClassification",
    ],
    hf_layout: HfLayout {
        network: &[
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.position_embeddings", "position_embd"),
            ("embeddings.token_type_embeddings", "token_types"),
            ("embeddings.LayerNorm", "token_embd_norm"),
            ("pooler.dense", "pooler"),
            ("classifier.dense", "cls"),
            ("classifier.out_proj", "cls.output"),
        ],
        changes: &[("position_embd.weight", Change::SkipRows(UNUSED_POSITIONS))],
        ..LAYOUT
    },
    rule: |keys| rule(keys, UNUSED_POSITIONS),
};

const LAYOUT: HfLayout = HfLayout {
    prefixes: &["bert.", "roberta."],
    layers: "encoder.layer.",
    layer: &[
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
        ("attention.output.dense", "attn_output"),
        ("attention.output.LayerNorm", "attn_output_norm"),
        ("intermediate.dense", "ffn_up"),
        ("output.dense", "ffn_down"),
        ("output.LayerNorm", "layer_output_norm"),
    ],
    network: &[
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        ("pooler.dense", "cls"),
        ("classifier", "cls.output"),
    ],
    ignored: &[
        "embeddings.position_ids",
        "bert.embeddings.position_ids",
        "roberta.embeddings.position_ids",
    ],
    // BERT's pooler is called `cls`; RoBERTa's is called `pooler`, and its classifiers have none.
    recasts: &[
        ("cls.weight", Recast::OfClassifier),
        ("cls.bias", Recast::OfClassifier),
        ("pooler.weight", Recast::OfClassifier),
        ("pooler.bias", Recast::OfClassifier),
    ],
    ..HfLayout::LLAMA
};

fn finish(descriptor: &mut Descriptor) {
    make_encoder(descriptor);
    remove_rope(descriptor);
    make_post_norm(descriptor);
    descriptor.n_learned_positions = Some(descriptor.n_ctx_train);
    for layer in &mut descriptor.layers {
        layer.attention_mut().qkv_bias = Presence::Required;
        layer.attention_mut().output_bias = Presence::Required;
        let dense = layer.dense_mut();
        dense.is_gated = false;
        dense.bias = Presence::Required;
    }
}

/// Collects the keys of a folder whose table of positions has rows that no token uses.
fn rule(keys: &mut GgufKeys<'_>, n_unused_positions: usize) -> Result<(), LoadError> {
    let config = keys.config;
    let kind = config.get("position_embedding_type");
    if kind.is_some_and(|kind| kind != "absolute") {
        return Err(config.wrong("position_embedding_type", "`absolute`"));
    }
    let first_position = config.opt_usize("pad_token_id")?.map_or(0, |id| id + 1);
    if n_unused_positions > 0 && first_position != n_unused_positions {
        return Err(config.wrong("pad_token_id", "1, since positions begin behind it"));
    }
    encoder::find_pooling(keys, &["cls", "pooler"])?;
    encoder::write_keys(keys, false)?;
    let n_ctx_train = keys.sizes.n_ctx_train.saturating_sub(n_unused_positions);
    keys.facts.n_ctx_train = n_ctx_train;
    keys.set_count("context_length", n_ctx_train)
}

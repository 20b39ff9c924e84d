//! BERT, and RoBERTa's family, which differs in its positions: each half is normed after its sum, positions are learned,
//! biases are everywhere.
//!
//! Source: transformers, `models/bert/modeling_bert.py`, `models/xlm_roberta/modeling_xlm_roberta.py`; llama.cpp,
//! `src/models/bert.cpp`.

use tokenmill_backend::{Activation, Pooling, RopeStyle};

use crate::{Descriptor, Ignorable, LoadError, PoolingDescriptor, Presence};

use super::{
    Architecture, Change, HfConfig, HfLayout, Recast,
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
    from_hf: Some(|config| from_hf(config, 0)),
    rule: |keys| encoder::write_keys(keys, Activation::GeluErf),
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
    from_hf: Some(|config| from_hf(config, UNUSED_POSITIONS)),
    rule: BERT.rule,
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

fn from_hf(config: &HfConfig, n_unused_positions: usize) -> Result<Descriptor, LoadError> {
    let kind = config.get("position_embedding_type");
    if kind.is_some_and(|kind| kind != "absolute") {
        return Err(config.wrong("position_embedding_type", "`absolute`"));
    }
    let first_position = config.opt_usize("pad_token_id")?.map_or(0, |id| id + 1);
    if n_unused_positions > 0 && first_position != n_unused_positions {
        return Err(config.wrong("pad_token_id", "1, since positions begin behind it"));
    }
    let mut descriptor = config.decoder()?;
    descriptor.n_ctx_train = descriptor.n_ctx_train.saturating_sub(n_unused_positions);
    finish(&mut descriptor);
    descriptor.pooling = Some(if config.is_classifier()? {
        config.rank_pooling(true, HeadStep::Tanh, Pooling::First, descriptor.n_embd)?
    } else {
        // A head that only classifiers and the training of BERT itself use.
        for part in ["cls", "pooler"] {
            for end in ["weight", "bias"] {
                (descriptor.ignorable).push(Ignorable::Tensor(format!("{part}.{end}")));
            }
        }
        (config.sentence_pooling()?).unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean))
    });
    Ok(descriptor)
}

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

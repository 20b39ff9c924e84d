//! Jina's encoders. The second version is BERT with ALiBi instead of positions and a gated feed-forward
//! network; its variant for code adds norms of queries, keys and the layer's sums. The third is XLM-RoBERTa
//! with rope.
//!
//! Source: `modeling_bert.py` of `jinaai/jina-bert-implementation` and `jinaai/jina-bert-v2-qk-post-norm`; transformers,
//! `models/jina_embeddings_v3`; llama.cpp, `src/models/bert.cpp`.

use serde_json::{Value, json};
use tokenmill_backend::{Activation, Pooling, RopeStyle};

use crate::{
    Descriptor, GateUpOrder, Ignorable, LoadError, NormPlacement, PoolingDescriptor, Presence, QkNorm,
};

use super::{
    Architecture, HfConfig, HfLayout, Recast,
    encoder::{self, HeadStep, make_encoder, make_post_norm, remove_rope},
};

/// The largest ALiBi bias per position, as a power of two.
const MAX_BIAS: f32 = 8.0;
/// Default rope base of the third version.
const ROPE_BASE: f32 = 20_000.0;
/// The name of the code variant, which its folders contain.
const CODE_VARIANT: &str = "qk-post-norm";

pub(super) const JINA_BERT_V2: Architecture = Architecture {
    name: "jina-bert-v2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        finish_v2(&mut descriptor, config.has_tensor("blk.0.attn_norm_2.weight"));
        let pooling = config.pooling(HeadStep::Tanh, Pooling::First)?;
        descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
        Ok(descriptor)
    },
    hf_classes: &[
        "JinaBertModel",
        "JinaBertForMaskedLM",
        "JinaBertForSequenceClassification",
    ],
    hf_layout: HfLayout {
        prefixes: &["bert."],
        layers: "encoder.layer.",
        layer: &[
            ("attention.self.query", "attn_q"),
            ("attention.self.key", "attn_k"),
            ("attention.self.value", "attn_v"),
            ("attention.self.layer_norm_q", "attn_q_norm"),
            ("attention.self.layer_norm_k", "attn_k_norm"),
            ("attention.output.dense", "attn_output"),
            ("attention.output.LayerNorm", "attn_output_norm"),
            ("layer_norm_1", "attn_norm_2"),
            ("mlp.gated_layers", "ffn_up"),
            ("mlp.up_gated_layer", "ffn_up"),
            ("mlp.wo", "ffn_down"),
            ("mlp.down_layer", "ffn_down"),
            ("mlp.layernorm", "layer_output_norm"),
            ("layer_norm_2", "layer_output_norm"),
        ],
        network: &[
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.token_type_embeddings", "token_types"),
            ("embeddings.LayerNorm", "token_embd_norm"),
            ("pooler.dense", "cls"),
            ("classifier", "cls.output"),
        ],
        ignored: &["cls.predictions.", "cls.seq_relationship."],
        ..HfLayout::LLAMA
    },
    from_hf: Some(from_hf_v2),
    rule: |keys| encoder::write_keys(keys, Activation::GeluErf),
};

pub(super) const JINA_BERT_V3: Architecture = Architecture {
    name: "jina-bert-v3",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        finish_v3(&mut descriptor);
        let pooling = config.pooling(HeadStep::Tanh, Pooling::First)?;
        descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
        Ok(descriptor)
    },
    hf_classes: &["JinaEmbeddingsV3Model"],
    hf_layout: HfLayout {
        prefixes: &["roberta."],
        layers: "encoder.layers.",
        layer: &[
            ("mixer.Wqkv", "attn_qkv"),
            ("mixer.out_proj", "attn_output"),
            ("norm1", "attn_output_norm"),
            ("mlp.fc1", "ffn_up"),
            ("mlp.fc2", "ffn_down"),
            ("norm2", "layer_output_norm"),
        ],
        network: &[
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.token_type_embeddings", "token_types"),
            ("emb_ln", "token_embd_norm"),
            ("pooler.dense", "pooler"),
        ],
        // A leftover of the encoder's training.
        recasts: &[
            ("pooler.weight", Recast::OfClassifier),
            ("pooler.bias", Recast::OfClassifier),
        ],
        ..HfLayout::LLAMA
    },
    from_hf: Some(from_hf_v3),
    rule: JINA_BERT_V2.rule,
};

fn from_hf_v2(config: &HfConfig) -> Result<Descriptor, LoadError> {
    if config
        .get("position_embedding_type")
        .is_some_and(|kind| kind != "alibi")
    {
        return Err(config.wrong("position_embedding_type", "`alibi`"));
    }
    let activation = match config.get("feed_forward_type").and_then(Value::as_str) {
        Some("geglu") => Activation::GeluErf,
        Some("reglu") => Activation::Relu,
        _ => return Err(config.wrong("feed_forward_type", "`geglu` or `reglu`")),
    };
    let is_code = config
        .get("auto_map")
        .is_some_and(|map| map.to_string().contains(CODE_VARIANT));
    let mut descriptor = config.decoder()?;
    finish_v2(&mut descriptor, is_code);
    for layer in &mut descriptor.layers {
        layer.dense_mut().activation = activation;
    }
    descriptor.pooling = Some(if config.is_classifier()? {
        config.rank_pooling(true, HeadStep::Tanh, Pooling::First, descriptor.n_embd)?
    } else {
        ignore_head(&mut descriptor, "cls");
        (config.sentence_pooling()?).unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean))
    });
    Ok(descriptor)
}

/// Returns whether a configuration uses the third version's own code. Its class is `XLMRobertaModel`, like
/// that of a network with learned positions.
pub(super) fn is_version_3(config: &HfConfig) -> bool {
    let has_rope = config
        .get("position_embedding_type")
        .is_some_and(|kind| kind == "rotary");
    has_rope && config.class().is_ok_and(|class| class == "XLMRobertaModel")
}

fn from_hf_v3(config: &HfConfig) -> Result<Descriptor, LoadError> {
    // Folders for the model's own code have task adapters next to the weights.
    if config.get("lora_adaptations").is_some() {
        return Err(config.wrong(
            "lora_adaptations",
            "a folder without adapters of tasks (one that transformers wrote, with an adapter merged or without)",
        ));
    }
    let names_base = ["rope_parameters", "rope_theta", "rotary_emb_base"];
    let default: &[_] = if names_base.iter().any(|key| config.get(key).is_some()) {
        &[]
    } else {
        &[("rope_theta", json!(ROPE_BASE))]
    };
    let config = config.with_defaults(default);
    let mut descriptor = config.decoder()?;
    finish_v3(&mut descriptor);
    ignore_head(&mut descriptor, "pooler");
    let pooling = config.sentence_pooling()?;
    descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
    Ok(descriptor)
}

/// Ignores the tensors of a head that only training uses.
fn ignore_head(descriptor: &mut Descriptor, name: &str) {
    for end in ["weight", "bias"] {
        (descriptor.ignorable).push(Ignorable::Tensor(format!("{name}.{end}")));
    }
}

fn finish_v2(descriptor: &mut Descriptor, is_code: bool) {
    make_encoder(descriptor);
    remove_rope(descriptor);
    make_post_norm(descriptor);
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        attention.alibi = Some(MAX_BIAS);
        attention.qkv_bias = Presence::Required;
        attention.output_bias = Presence::Required;
        attention.qk_norm = is_code.then_some(QkNorm::RowAsLayers);
        let dense = layer.dense_mut();
        dense.activation = Activation::GeluErf;
        dense.bias = Presence::Optional;
        if is_code {
            dense.joined = GateUpOrder::UpFirst;
            layer.norms = NormPlacement::AfterSumTwice;
        }
    }
}

fn finish_v3(descriptor: &mut Descriptor) {
    make_encoder(descriptor);
    make_post_norm(descriptor);
    for layer in &mut descriptor.layers {
        layer.attention_mut().qkv_bias = Presence::Required;
        layer.attention_mut().output_bias = Presence::Required;
        let dense = layer.dense_mut();
        dense.activation = Activation::GeluErf;
        dense.is_gated = false;
        dense.bias = Presence::Required;
    }
}

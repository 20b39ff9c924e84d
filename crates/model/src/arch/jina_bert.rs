//! Jina's encoders. The second version is BERT with ALiBi instead of positions and a gated feed-forward
//! network; its variant for code adds norms of queries, keys and the layer's sums. The third is XLM-RoBERTa
//! with rope.
//!
//! Source: `modeling_bert.py` of `jinaai/jina-bert-implementation` and `jinaai/jina-bert-v2-qk-post-norm`; transformers,
//! `models/jina_embeddings_v3`; llama.cpp, `src/models/bert.cpp`.

use serde_json::Value;
use tokenmill_backend::{Activation, Pooling, RopeStyle};

use crate::{Descriptor, GateUpOrder, LoadError, NormPlacement, PoolingDescriptor, Presence, QkNorm};

use super::{
    Architecture, GgufKeys, HfConfig, HfLayout, Recast,
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
        finish_v2(&mut descriptor, config.has_qk_norm("blk.0.attn_norm_2.weight"));
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
    rule: rule_v2,
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
    rule: rule_v3,
};

/// Returns whether a configuration uses the third version's own code. Its class is `XLMRobertaModel`, like
/// that of a network with learned positions.
pub(super) fn is_version_3(config: &HfConfig) -> bool {
    let has_rope = config
        .get("position_embedding_type")
        .is_some_and(|kind| kind == "rotary");
    has_rope && config.class().is_ok_and(|class| class == "XLMRobertaModel")
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

/// Collects the keys of a folder of the second version.
fn rule_v2(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    if config
        .get("position_embedding_type")
        .is_some_and(|kind| kind != "alibi")
    {
        return Err(config.wrong("position_embedding_type", "`alibi`"));
    }
    keys.facts.activation = match config.get("feed_forward_type").and_then(Value::as_str) {
        Some("geglu") => Some(Activation::GeluErf),
        Some("reglu") => Some(Activation::Relu),
        _ => return Err(config.wrong("feed_forward_type", "`geglu` or `reglu`")),
    };
    keys.facts.has_qk_norm = config
        .get("auto_map")
        .is_some_and(|map| map.to_string().contains(CODE_VARIANT));
    encoder::find_pooling(keys, &["cls"])?;
    encoder::write_keys(keys, false)
}

/// Collects the keys of a folder of the third version.
fn rule_v3(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    // Folders for the model's own code have task adapters next to the weights.
    if config.get("lora_adaptations").is_some() {
        return Err(config.wrong(
            "lora_adaptations",
            "a folder without adapters of tasks (one that transformers wrote, with an adapter merged or without)",
        ));
    }
    let names_base = ["rope_parameters", "rope_theta", "rotary_emb_base"];
    if names_base.iter().all(|key| config.get(key).is_none())
        && let Some(rope) = &mut keys.facts.rope
    {
        rope.base = ROPE_BASE;
    }
    keys.facts.activation = Some(Activation::GeluErf);
    encoder::find_pooling(keys, &["pooler"])?;
    encoder::write_keys(keys, true)
}

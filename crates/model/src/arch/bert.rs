//! BERT and its descendants: layer norms after sums, and in the second half of the family rope or ALiBi in place of learned
//! positions.
//!
//! RoBERTa's family differs from BERT in its positions. Nomic BERT has rope, a gated feed-forward network and no biases
//! except in norms. The second version of Jina's encoders is BERT with ALiBi and a gated feed-forward network; its variant for
//! code adds norms of queries, keys and the layer's sums. The third is XLM-RoBERTa with rope. EuroBERT has Llama's layers,
//! seen in both directions.
//!
//! Source: transformers, `models/{bert,xlm_roberta,nomic_bert,jina_embeddings_v3}`; `modeling_bert.py` of
//! `jinaai/jina-bert-implementation` and `jinaai/jina-bert-v2-qk-post-norm`; `modeling_eurobert.py` of the published models;
//! llama.cpp, `src/models/bert.cpp`, `src/models/eurobert.cpp`.

use serde_json::Value;
use tokenmill_backend::{Activation, Pooling, RopeStyle};

use crate::{Descriptor, GateUpOrder, LoadError, NormPlacement, Presence, QkNorm};

use super::{
    Architecture, Change, GgufConfig, GgufKeys, HfConfig, HfLayout, Recast, Recasts,
    encoder::{self, HeadStep},
    hf_layout::Names,
};

/// The number of rows of RoBERTa's position table that no token uses: positions begin after the padding token's.
const UNUSED_POSITIONS: usize = 2;
/// The largest ALiBi bias per position, as a power of two.
const MAX_BIAS: f32 = 8.0;
/// Default rope base of Jina's third version.
const ROPE_BASE: f32 = 20_000.0;
/// The name of Jina's code variant, which its folders contain.
const CODE_VARIANT: &str = "qk-post-norm";

pub(super) const BERT: Architecture = Architecture {
    name: "bert",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?.without_rope();
        descriptor.n_learned_positions = Some(descriptor.n_ctx_train);
        let descriptor = descriptor.without_gate(Activation::GeluErf);
        pooled(
            config,
            descriptor.with_normed_sums().with_biases(Presence::Required),
        )
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
            EMBEDDINGS[0],
            EMBEDDINGS[1],
            EMBEDDINGS[2],
            ("embeddings.position_embeddings", "position_embd"),
            ("pooler.dense", "pooler"),
            ("classifier.dense", "cls"),
            ("classifier.out_proj", "cls.output"),
        ],
        changes: &[("position_embd.weight", Change::SkipRows(UNUSED_POSITIONS))],
        ..LAYOUT
    },
    rule: |keys| rule(keys, UNUSED_POSITIONS),
};

pub(super) const NOMIC_BERT: Architecture = Architecture {
    name: "nomic-bert",
    from_gguf: |config| {
        let descriptor = config.decoder(RopeStyle::Neox)?;
        pooled(
            config,
            descriptor.with_normed_sums().with_biases(Presence::Optional),
        )
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
        network: &[EMBEDDINGS[0], EMBEDDINGS[1], ("emb_ln", "token_embd_norm")],
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

pub(super) const JINA_BERT_V2: Architecture = Architecture {
    name: "jina-bert-v2",
    from_gguf: |config| {
        let is_code = config.has_qk_norm("blk.0.attn_norm_2.weight");
        let descriptor = config.decoder(RopeStyle::Neox)?.without_rope();
        let descriptor = (descriptor.with_normed_sums())
            .with_attention_biases(Presence::Required)
            .with_activation(Activation::GeluErf);
        let descriptor = descriptor.with_layers(|_, layer| {
            layer.attention_mut().alibi = Some(MAX_BIAS);
            layer.dense_mut().bias = Presence::Optional;
            if is_code {
                layer.attention_mut().qk_norm = Some(QkNorm::RowAsLayers);
                layer.dense_mut().joined = GateUpOrder::UpFirst;
                layer.norms = NormPlacement::AfterSumTwice;
            }
        });
        pooled(config, descriptor)
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
            ("attention.self.layer_norm_q", "attn_q_norm"),
            ("attention.self.layer_norm_k", "attn_k_norm"),
            ("layer_norm_1", "attn_norm_2"),
            ("mlp.gated_layers", "ffn_up"),
            ("mlp.up_gated_layer", "ffn_up"),
            ("mlp.wo", "ffn_down"),
            ("mlp.down_layer", "ffn_down"),
            ("mlp.layernorm", "layer_output_norm"),
            ("layer_norm_2", "layer_output_norm"),
        ],
        shared: &[LAYER],
        network: &[
            EMBEDDINGS[0],
            EMBEDDINGS[1],
            EMBEDDINGS[2],
            ("pooler.dense", "cls"),
            ("classifier", "cls.output"),
        ],
        ignored: &["cls.predictions.", "cls.seq_relationship."],
        ..HfLayout::LLAMA
    },
    rule: jina_2_rule,
};

pub(super) const JINA_BERT_V3: Architecture = Architecture {
    name: "jina-bert-v3",
    from_gguf: |config| {
        let descriptor = config.decoder(RopeStyle::Neox)?.with_normed_sums();
        let descriptor = descriptor.without_gate(Activation::GeluErf);
        pooled(config, descriptor.with_biases(Presence::Required))
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
            EMBEDDINGS[0],
            EMBEDDINGS[1],
            ("emb_ln", "token_embd_norm"),
            ("pooler.dense", "pooler"),
        ],
        // A leftover of the encoder's training.
        recasts: POOLERS,
        ..HfLayout::LLAMA
    },
    rule: jina_3_rule,
};

pub(super) const EUROBERT: Architecture = Architecture {
    name: "eurobert",
    from_gguf: |config| pooled(config, config.decoder(RopeStyle::Neox)?),
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

const EMBEDDINGS: Names = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
];

const LAYER: Names = &[
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
];

const LAYOUT: HfLayout = HfLayout {
    prefixes: &["bert.", "roberta."],
    layers: "encoder.layer.",
    layer: LAYER,
    network: &[
        EMBEDDINGS[0],
        EMBEDDINGS[1],
        EMBEDDINGS[2],
        ("embeddings.position_embeddings", "position_embd"),
        ("pooler.dense", "cls"),
        ("classifier", "cls.output"),
    ],
    ignored: &[
        "embeddings.position_ids",
        "bert.embeddings.position_ids",
        "roberta.embeddings.position_ids",
    ],
    recasts: POOLERS,
    ..HfLayout::LLAMA
};

/// BERT's pooler is called `cls`; RoBERTa's is called `pooler`, and its classifiers have none.
const POOLERS: Recasts = &[
    ("cls.weight", Recast::OfClassifier),
    ("cls.bias", Recast::OfClassifier),
    ("pooler.weight", Recast::OfClassifier),
    ("pooler.bias", Recast::OfClassifier),
];

/// Makes an encoder of a network, whose first row is pooled before a classification head.
fn pooled(config: &GgufConfig<'_>, descriptor: Descriptor) -> Result<Descriptor, LoadError> {
    config.pooled(descriptor.into_encoder(), HeadStep::Tanh, Pooling::First)
}

/// Returns whether a configuration uses the third version's own code. Its class is `XLMRobertaModel`, like
/// that of a network with learned positions.
pub(super) fn is_version_3(config: &HfConfig) -> bool {
    let has_rope = config
        .get("position_embedding_type")
        .is_some_and(|kind| kind == "rotary");
    has_rope && config.class().is_ok_and(|class| class == "XLMRobertaModel")
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

/// Collects the keys of a folder of Jina's second version.
fn jina_2_rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
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

/// Collects the keys of a folder of Jina's third version.
fn jina_3_rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
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

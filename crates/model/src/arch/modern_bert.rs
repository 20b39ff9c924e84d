//! ModernBERT: layer norms before each half, but none before the first mixer, rope with two bases, windows in two of three
//! layers, a GELU-gated feed-forward network, no biases.
//!
//! Source: transformers, `models/modernbert/modeling_modernbert.py`; llama.cpp, `src/models/modern-bert.cpp`.

use tokenmill_backend::{Activation, NormKind, Pooling, RopeStyle};

use crate::{
    Descriptor, EmbeddingNorm, LoadError, NormPlacement, PoolingDescriptor, Presence, RopeDescriptor,
    RopeScaling,
};

use super::{
    Architecture, GgufKeys, HfLayout,
    encoder::{self, HeadStep, make_encoder},
};

/// Period of the layers with full attention, beginning with the first.
const PERIOD: usize = 3;
/// Default rope base of layers with a window.
const LOCAL_BASE: f32 = 10_000.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "modern-bert",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        let named = config.opt_str("hidden_activation")?;
        let activation = match named.filter(|_| config.facts.is_none()) {
            None | Some("gelu" | "geglu") => Activation::GeluErf,
            Some("silu" | "swish" | "swiglu") => Activation::Silu,
            Some("reglu") => Activation::Relu,
            Some(other) => {
                return Err(config.unsupported(format!(
                    "activation `{other}` (key `{}`; supported are gelu, silu and reglu)",
                    config.key("hidden_activation")
                )));
            }
        };
        for layer in &mut descriptor.layers {
            layer.dense_mut().activation = activation;
        }
        let n_layers = descriptor.layers.len();
        let is_sliding = match config.opt_usize("attention.sliding_window_pattern") {
            Ok(period) => every_but(period.unwrap_or(PERIOD), n_layers),
            // The value is a list with an entry per layer.
            Err(_) => config.sliding_layers(n_layers, PERIOD)?,
        };
        let base = match config.facts.and_then(|facts| facts.local_rope.as_ref()) {
            Some(local) => local.base,
            None => config.opt_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE),
        };
        finish(&mut descriptor, &is_sliding, base);
        // llama.cpp uses the mean for files older than the key.
        let pooling = config.pooling(HeadStep::GeluAndNorm, Pooling::Mean)?;
        descriptor.pooling = Some(pooling.unwrap_or_else(|| PoolingDescriptor::embedding(Pooling::Mean)));
        Ok(descriptor)
    },
    hf_classes: &["ModernBertModel", "ModernBertForSequenceClassification"],
    hf_layout: HfLayout {
        layer: &[
            ("attn_norm", "attn_norm"),
            ("attn.Wqkv", "attn_qkv"),
            ("attn.Wo", "attn_output"),
            ("mlp_norm", "ffn_norm"),
            ("mlp.Wi", "ffn_up"),
            ("mlp.Wo", "ffn_down"),
        ],
        network: &[
            ("embeddings.tok_embeddings", "token_embd"),
            ("embeddings.norm", "token_embd_norm"),
            ("final_norm", "output_norm"),
            ("head.dense", "cls"),
            ("head.norm", "cls.norm"),
            ("classifier", "cls.output"),
        ],
        ..HfLayout::LLAMA
    },
    rule,
};

/// Returns for each layer whether its index is no multiple of `period`.
fn every_but(period: usize, n_layers: usize) -> Vec<bool> {
    (0..n_layers)
        .map(|layer_idx| !layer_idx.is_multiple_of(period.max(1)))
        .collect()
}

fn finish(descriptor: &mut Descriptor, is_sliding: &[bool], local_base: f32) {
    make_encoder(descriptor);
    descriptor.norm.kind = NormKind::Layer;
    descriptor.norm.bias = Presence::Optional;
    descriptor.embedding_norm = Some(EmbeddingNorm::Weighted);
    descriptor.ropes.push(RopeDescriptor {
        base: local_base,
        scaling: RopeScaling::None,
        ..descriptor.ropes[0].clone()
    });
    if let Some(first) = descriptor.layers.first_mut() {
        first.norms = NormPlacement::PreFfn;
    }
    for (layer, &is_sliding) in descriptor.layers.iter_mut().zip(is_sliding) {
        layer.dense_mut().bias = Presence::Optional;
        let attention = layer.attention_mut();
        attention.qkv_bias = Presence::Optional;
        attention.output_bias = Presence::Optional;
        attention.rope = Some(usize::from(is_sliding));
        if !is_sliding {
            attention.window = None;
        }
    }
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    let n_layers = keys.sizes.n_layers;
    let window = config.opt_usize("local_attention")?.unwrap_or(128);
    let period = config.opt_usize("global_attn_every_n_layers")?.unwrap_or(PERIOD);
    let is_sliding = every_but(period, n_layers).into_iter();
    keys.facts.windows = is_sliding
        .map(|is_sliding| is_sliding.then_some(window))
        .collect();
    let head_dim = keys.sizes.head_dim;
    let mut local = config.rope("sliding_attention", head_dim)?;
    if let Some(base) = config.opt_f32("local_rope_theta")? {
        local.base = base;
    }
    keys.facts.local_rope = Some(local);
    if let (Some(base), Some(rope)) = (config.opt_f32("global_rope_theta")?, &mut keys.facts.rope) {
        rope.base = base;
    }
    keys.facts.pooling = if config.is_classifier()? {
        let is_mean = config
            .get("classifier_pooling")
            .is_some_and(|kind| kind == "mean");
        let kind = if is_mean { Pooling::Mean } else { Pooling::First };
        Some(config.rank_pooling(true, HeadStep::GeluAndNorm, kind, keys.sizes.n_embd)?)
    } else {
        config.sentence_pooling()?
    };
    keys.usual()?;
    keys.set("attention.causal", false);
    keys.pooling()?;
    let classifier: u32 = match keys
        .config
        .get("classifier_pooling")
        .and_then(|name| name.as_str())
    {
        Some("mean") => 1,
        _ => 2,
    };
    keys.set("classifier.pooling_type", classifier);
    encoder::labels(keys);
    keys.copy_count("attention.sliding_window", &["local_attention"])?;
    keys.copy_count(
        "attention.sliding_window_pattern",
        &["global_attn_every_n_layers"],
    )?;
    keys.set("rope.scaling.type", "none");
    keys.vocab_size()?;
    if let Some(name) = keys
        .config
        .get("hidden_activation")
        .and_then(|name| name.as_str())
    {
        keys.set("hidden_activation", name);
    }
    Ok(())
}

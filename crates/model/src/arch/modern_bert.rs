//! ModernBERT: layer norms before each half, but none before the first mixer, rope with two bases, windows in two of three
//! layers, a GELU-gated feed-forward network, no biases. Files of Laya and Julia end with the layers of a head that scores options.
//!
//! Source: transformers, `models/modernbert/modeling_modernbert.py`; llama.cpp, `src/models/modern-bert.cpp`.

use serde_json::Value;
use tokenmill_backend::{Activation, Pooling, RopeStyle};

use crate::{DecisionDescriptor, EmbeddingNorm, NormPlacement, Presence, RopeDescriptor, RopeScaling};

use super::{
    Architecture, HfLayout,
    encoder::{self, HeadStep},
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
        let n_head_layers = config.opt_count("decision.block_count")?;
        let n_trunk = n_layers.saturating_sub(n_head_layers.unwrap_or(0));
        descriptor.decision = n_head_layers.map(|n_layers| DecisionDescriptor { n_layers });
        descriptor.embedding_norm = Some(EmbeddingNorm::Weighted);
        descriptor.ropes.push(RopeDescriptor {
            base,
            scaling: RopeScaling::None,
            ..descriptor.ropes[0].clone()
        });
        let encoder = (descriptor.into_encoder())
            .with_layer_norms(Presence::Optional)
            .with_activation(activation)
            .with_biases(Presence::Optional)
            .with_layers(|layer_idx, layer| {
                if layer_idx == 0 {
                    layer.norms = NormPlacement::PreFfn;
                }
                let attention = layer.attention_mut();
                if layer_idx >= n_trunk {
                    (attention.rope, attention.window) = (None, None);
                    let dense = layer.dense_mut();
                    (dense.is_gated, dense.activation) = (false, Activation::Relu);
                    return;
                }
                attention.rope = Some(usize::from(is_sliding[layer_idx]));
                attention.window = attention.window.filter(|_| is_sliding[layer_idx]);
            });
        if encoder.decision.is_some() {
            return Ok(encoder);
        }
        // llama.cpp uses the mean for files older than the key.
        config.pooled(encoder, HeadStep::GeluAndNorm, Pooling::Mean)
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
    rule: |keys| {
        let config = keys.config;
        let n_layers = keys.sizes.n_layers;
        let window = config.opt_usize("local_attention")?.unwrap_or(128);
        let period = config.opt_usize("global_attn_every_n_layers")?.unwrap_or(PERIOD);
        let is_sliding = every_but(period, n_layers).into_iter();
        keys.facts.windows = is_sliding
            .map(|is_sliding| is_sliding.then_some(window))
            .collect();
        let mut local = config.rope("sliding_attention", keys.sizes.head_dim)?;
        local.base = config.opt_f32("local_rope_theta")?.unwrap_or(local.base);
        keys.facts.local_rope = Some(local);
        if let (Some(base), Some(rope)) = (config.opt_f32("global_rope_theta")?, &mut keys.facts.rope) {
            rope.base = base;
        }
        let is_mean = config
            .get("classifier_pooling")
            .is_some_and(|kind| kind == "mean");
        keys.facts.pooling = if config.is_classifier()? {
            let kind = if is_mean { Pooling::Mean } else { Pooling::First };
            Some(config.rank_pooling(HeadStep::GeluAndNorm, kind, keys.sizes.n_embd)?)
        } else {
            config.sentence_pooling()?
        };
        keys.usual()?;
        keys.set("attention.causal", false);
        keys.pooling()?;
        keys.set("classifier.pooling_type", if is_mean { 1_u32 } else { 2 });
        encoder::labels(keys);
        keys.copy_count("attention.sliding_window", &["local_attention"])?;
        keys.copy_count(
            "attention.sliding_window_pattern",
            &["global_attn_every_n_layers"],
        )?;
        keys.set("rope.scaling.type", "none");
        keys.vocab_size()?;
        if let Some(name) = config.get("hidden_activation").and_then(Value::as_str) {
            keys.set("hidden_activation", name);
        }
        Ok(())
    },
};

/// Returns for each layer whether its index is no multiple of `period`.
fn every_but(period: usize, n_layers: usize) -> Vec<bool> {
    (0..n_layers)
        .map(|layer_idx| !layer_idx.is_multiple_of(period.max(1)))
        .collect()
}

//! Bloom: distances instead of positions (ALiBi), normed embeddings, layer norms and biases everywhere, no gate.
//!
//! Source: transformers, `models/bloom/modeling_bloom.py`; llama.cpp, `src/models/bloom.cpp`.

use tokenmill_backend::{Activation, NormKind, RopeStyle};

use crate::{Descriptor, EmbeddingNorm, LoadError, Presence};

use super::{Architecture, Change, GgufKeys, HfLayout};

/// The largest bias of a step of distance, as a power of two.
const MAX_BIAS: f32 = 8.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bloom",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        finish(&mut descriptor);
        Ok(descriptor)
    },
    hf_classes: &["BloomForCausalLM"],
    hf_layout: HfLayout {
        prefixes: &["transformer."],
        layers: "h.",
        layer: &[
            ("self_attention.query_key_value", "attn_qkv"),
            ("self_attention.dense", "attn_output"),
            ("mlp.dense_h_to_4h", "ffn_up"),
            ("mlp.dense_4h_to_h", "ffn_down"),
        ],
        network: &[
            ("word_embeddings", "token_embd"),
            ("word_embeddings_layernorm", "token_embd_norm"),
            ("ln_f", "output_norm"),
        ],
        changes: &[
            ("attn_qkv.weight", Change::UngroupQkv),
            ("attn_qkv.bias", Change::UngroupQkv),
        ],
        ..HfLayout::LLAMA
    },
    rule,
};

fn finish(descriptor: &mut Descriptor) {
    descriptor.norm.kind = NormKind::Layer;
    descriptor.norm.bias = Presence::Required;
    descriptor.embedding_norm = Some(EmbeddingNorm::Weighted);
    descriptor.ropes.clear();
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        attention.rope = None;
        attention.alibi = Some(MAX_BIAS);
        attention.qkv_bias = Presence::Required;
        attention.output_bias = Presence::Required;
        let dense = layer.dense_mut();
        dense.activation = Activation::GeluTanh;
        dense.is_gated = false;
        dense.bias = Presence::Required;
    }
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let key = "apply_residual_connection_post_layernorm";
    if keys.config.is(key)? {
        return Err(keys.config.wrong(key, "false"));
    }
    keys.facts.activation = None;
    keys.sizes()?;
    let n_embd = keys.sizes.n_embd;
    keys.set_count("feed_forward_length", n_embd.saturating_mul(4))?;
    keys.heads()?;
    keys.copy_count("attention.head_count_kv", &["n_head", "num_attention_heads"])?;
    keys.norm_eps()
}

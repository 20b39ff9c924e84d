//! Bloom: distances instead of positions (ALiBi), normed embeddings, layer norms and biases everywhere, no gate.
//!
//! Source: transformers, `models/bloom/modeling_bloom.py`; llama.cpp, `src/models/bloom.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{EmbeddingNorm, Presence};

use super::{Architecture, HfLayout, hf_layout::GROUPED_QKV};

/// The largest bias of a step of distance, as a power of two.
const MAX_BIAS: f32 = 8.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bloom",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?.without_rope();
        descriptor.embedding_norm = Some(EmbeddingNorm::Weighted);
        Ok((descriptor.with_layer_norms(Presence::Required))
            .with_biases(Presence::Required)
            .without_gate(Activation::GeluTanh)
            .with_layers(|_, layer| layer.attention_mut().alibi = Some(MAX_BIAS)))
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
        changes: GROUPED_QKV,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        let key = "apply_residual_connection_post_layernorm";
        if keys.config.is(key)? {
            return Err(keys.config.wrong(key, "false"));
        }
        keys.facts.activation = None;
        keys.sizes()?;
        keys.set_count("feed_forward_length", keys.sizes.n_embd.saturating_mul(4))?;
        keys.heads()?;
        keys.copy_count("attention.head_count_kv", &["n_head", "num_attention_heads"])?;
        keys.norm_eps()
    },
};

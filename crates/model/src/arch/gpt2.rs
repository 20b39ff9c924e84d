//! GPT-2: learned positions, layer norms and biases everywhere, no gate. Folders store matrices with the input's width first.
//!
//! Source: transformers, `models/gpt2/modeling_gpt2.py`; llama.cpp, `src/models/gpt2.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::Presence;

use super::{Architecture, Change, HfLayout, UNUSED};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gpt2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?.without_rope();
        descriptor.n_learned_positions = Some(descriptor.n_ctx_train);
        Ok((descriptor.with_layer_norms(Presence::Required))
            .with_biases(Presence::Required)
            .without_gate(Activation::GeluTanh))
    },
    hf_classes: &["GPT2LMHeadModel"],
    hf_layout: HfLayout {
        prefixes: &["transformer."],
        layers: "h.",
        layer: &[
            ("ln_1", "attn_norm"),
            ("attn.c_attn", "attn_qkv"),
            ("attn.c_proj", "attn_output"),
            ("attn.bias", UNUSED),
            ("attn.masked_bias", UNUSED),
            ("ln_2", "ffn_norm"),
            ("mlp.c_fc", "ffn_up"),
            ("mlp.c_proj", "ffn_down"),
        ],
        network: &[
            ("wte", "token_embd"),
            ("wpe", "position_embd"),
            ("ln_f", "output_norm"),
        ],
        changes: &[
            ("attn_qkv.weight", Change::Transpose),
            ("attn_output.weight", Change::Transpose),
            ("ffn_up.weight", Change::Transpose),
            ("ffn_down.weight", Change::Transpose),
        ],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.sizes()?;
        keys.dense_widths_or_usual()?;
        keys.copy_count("attention.head_count", &["n_head", "num_attention_heads"])?;
        let is_scaled = keys.config.opt_bool("scale_attn_weights")?.unwrap_or(true);
        let is_scaled_by_layer = keys.config.is("scale_attn_by_inverse_layer_idx")?;
        let head_dim = keys.sizes.n_embd / keys.sizes.n_heads.max(1);
        let scale = if is_scaled {
            1.0 / (head_dim as f32).sqrt()
        } else {
            1.0
        };
        let scales = (1..=keys.sizes.n_layers).map(|layer| {
            if is_scaled_by_layer {
                scale / layer as f32
            } else {
                scale
            }
        });
        keys.facts.score_scales = Some(scales.collect());
        keys.norm_eps()
    },
};

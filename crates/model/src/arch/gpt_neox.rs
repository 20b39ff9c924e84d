//! GPT-NeoX and Pythia: layer norms, biases everywhere, rope over a part of each head; in most versions both halves side by
//! side, each with its norm.
//!
//! Source: transformers, `models/gpt_neox/modeling_gpt_neox.py`; llama.cpp, `src/models/gptneox.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Presence, Residual};

use super::{Architecture, HfLayout, UNUSED, hf_layout::GROUPED_QKV};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gptneox",
    from_gguf: |config| {
        let is_parallel = config.opt_bool("use_parallel_residual")?.unwrap_or(true);
        let residual = [Residual::Sequential, Residual::ParallelTwoNorms][usize::from(is_parallel)];
        Ok((config.decoder(RopeStyle::Neox)?)
            .with_layer_norms(Presence::Required)
            .with_residual(residual)
            .with_biases(Presence::Required)
            .with_attention_biases(Presence::Optional)
            .without_gate(Activation::GeluErf))
    },
    hf_classes: &["GPTNeoXForCausalLM"],
    hf_layout: HfLayout {
        prefixes: &["gpt_neox."],
        layer: &[
            ("attention.query_key_value", "attn_qkv"),
            ("attention.dense", "attn_output"),
            ("attention.bias", UNUSED),
            ("attention.masked_bias", UNUSED),
            ("attention.rotary_emb", "rotary_emb"),
            ("mlp.dense_h_to_4h", "ffn_up"),
            ("mlp.dense_4h_to_h", "ffn_down"),
        ],
        network: &[
            ("embed_in", "token_embd"),
            ("final_layer_norm", "output_norm"),
            ("embed_out", "output"),
        ],
        changes: GROUPED_QKV,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        let has_bias = keys.config.opt_bool("attention_bias")?.unwrap_or(true);
        let bias = Presence::of(has_bias);
        (keys.facts.qkv_bias, keys.facts.output_bias) = (Some(bias), Some(bias));
        keys.sizes()?;
        keys.rope_width()?;
        keys.heads()?;
        keys.remove("attention.head_count_kv");
        let is_parallel = keys.config.opt_bool("use_parallel_residual")?;
        keys.set("use_parallel_residual", is_parallel.unwrap_or(true));
        keys.unusual_rope_base();
        keys.norm_eps()
    },
};

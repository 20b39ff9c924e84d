//! Falcon, in its two layouts: both halves side by side, through one norm (7B, 11B) or through a norm each (40B, 180B).
//!
//! Source: transformers, `models/falcon/modeling_falcon.py`; llama.cpp, `src/models/falcon.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Presence, Residual};

use super::{Architecture, HfLayout, Recast, hf_layout::GROUPED_QKV};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "falcon",
    from_gguf: |config| {
        let residual = if config.has_tensor("blk.0.attn_norm_2.weight") {
            Residual::ParallelTwoNorms
        } else {
            Residual::Parallel
        };
        Ok((config.decoder(RopeStyle::Neox)?)
            .with_layer_norms(Presence::Required)
            .with_residual(residual)
            .with_biases(Presence::Optional)
            .without_gate(Activation::GeluErf))
    },
    hf_classes: &["FalconForCausalLM"],
    hf_layout: HfLayout {
        prefixes: &["transformer."],
        layers: "h.",
        layer: &[
            ("ln_attn", "attn_norm"),
            ("ln_mlp", "ffn_norm"),
            ("self_attention.query_key_value", "attn_qkv"),
            ("self_attention.dense", "attn_output"),
            ("mlp.dense_h_to_4h", "ffn_up"),
            ("mlp.dense_4h_to_h", "ffn_down"),
        ],
        network: &[("word_embeddings", "token_embd"), ("ln_f", "output_norm")],
        changes: GROUPED_QKV,
        recasts: &[
            ("attn_norm.weight", Recast::RenameOfTwoNorms("attn_norm_2.weight")),
            ("attn_norm.bias", Recast::RenameOfTwoNorms("attn_norm_2.bias")),
            ("ffn_norm.weight", Recast::RenameOfTwoNorms("attn_norm.weight")),
            ("ffn_norm.bias", Recast::RenameOfTwoNorms("attn_norm.bias")),
        ],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        let config = keys.config;
        if config.is("alibi")? {
            return Err(config.wrong("alibi", "false"));
        }
        let is_new = config.is("new_decoder_architecture")?;
        let n_norms = config.opt_usize("num_ln_in_parallel_attn")?;
        let is_parallel = config.opt_bool("parallel_attn")?.unwrap_or(true);
        let residual = match (is_new, n_norms) {
            (true, None | Some(2)) => Residual::ParallelTwoNorms,
            (false, _) if !is_parallel => Residual::Sequential,
            _ => Residual::Parallel,
        };
        (keys.facts).amend_layers(move |_, layer| layer.residual = residual);
        keys.find_biases(["bias", "bias"])?;
        let is_multi_query = config.opt_bool("multi_query")?.unwrap_or(true);
        keys.sizes()?;
        keys.set("tensor_data_layout", "jploski");
        keys.dense_widths_or_usual()?;
        keys.set_count("attention.head_count", keys.sizes.n_heads)?;
        let n_kv_heads = match (is_new, is_multi_query) {
            (true, _) => keys.sizes.n_kv_heads,
            (false, true) => 1,
            (false, false) => keys.sizes.n_heads,
        };
        keys.set_count("attention.head_count_kv", n_kv_heads)?;
        keys.unusual_rope_base();
        keys.norm_eps()
    },
};

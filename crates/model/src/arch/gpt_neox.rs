//! GPT-NeoX and Pythia: layer norms, biases everywhere, rope over a part of each head; in most versions both halves side by
//! side, each with its norm.
//!
//! Source: transformers, `models/gpt_neox/modeling_gpt_neox.py`; llama.cpp, `src/models/gptneox.cpp`.

use tokenmill_backend::{Activation, NormKind, RopeStyle};

use crate::{Descriptor, LoadError, Presence, Residual};

use super::{Architecture, Change, GgufKeys, HfLayout, UNUSED};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gptneox",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            layer.dense_mut().activation = Activation::GeluErf;
        }
        let is_parallel = config.opt_bool("use_parallel_residual")?.unwrap_or(true);
        finish(&mut descriptor, is_parallel, Presence::Optional);
        Ok(descriptor)
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
        changes: &[
            ("attn_qkv.weight", Change::UngroupQkv),
            ("attn_qkv.bias", Change::UngroupQkv),
        ],
        ..HfLayout::LLAMA
    },
    rule,
};

fn finish(descriptor: &mut Descriptor, is_parallel: bool, attention_bias: Presence) {
    descriptor.norm.kind = NormKind::Layer;
    descriptor.norm.bias = Presence::Required;
    for layer in &mut descriptor.layers {
        if is_parallel {
            layer.residual = Residual::ParallelTwoNorms;
        }
        layer.attention_mut().qkv_bias = attention_bias;
        layer.attention_mut().output_bias = attention_bias;
        layer.dense_mut().is_gated = false;
        layer.dense_mut().bias = Presence::Required;
    }
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let bias = match keys.config.opt_bool("attention_bias")? {
        Some(false) => Presence::Absent,
        _ => Presence::Required,
    };
    (keys.facts.qkv_bias, keys.facts.output_bias) = (Some(bias), Some(bias));
    keys.sizes()?;
    keys.rope_width()?;
    keys.heads()?;
    keys.remove("attention.head_count_kv");
    let is_parallel = keys.config.opt_bool("use_parallel_residual")?;
    keys.set("use_parallel_residual", is_parallel.unwrap_or(true));
    keys.unusual_rope_base();
    keys.norm_eps()
}

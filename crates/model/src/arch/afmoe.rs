//! AFMoE, the network of Trinity: experts chosen by sigmoids with a correction bias next to a shared network, after some
//! dense layers; attention with a gate, normed q and k, and a window in three of four layers; norms before and after
//! each half, and scaled embeddings.
//!
//! Only layers with a window have positions. Rope pairs are one of each half of a head in both formats.
//!
//! Source: transformers, `models/afmoe/modeling_afmoe.py`; llama.cpp, `src/models/afmoe.cpp`, `conversion/afmoe.py`.

use tokenmill_backend::{ExpertScore, RopeStyle};

use crate::{LoadError, NormPlacement, OutputGate, Presence, QkNorm};

use super::{
    Architecture, GgufKeys, HfLayout, folder_facts::RouterFacts, gguf_experts::MoeDefaults,
    hf_experts::EXPERTS,
};

/// Default period of the layers with full attention.
const PERIOD: usize = 4;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "afmoe",
    from_gguf: |config| {
        // Without it no layer would have positions.
        config.usize("attention.sliding_window")?;
        let mut descriptor = config.decoder_with_windows(RopeStyle::Neox, PERIOD, None)?;
        descriptor.embedding_scale = (descriptor.n_embd as f32).sqrt();
        let descriptor = (descriptor.with_rope_in_windows().with_qk_norm(QkNorm::Head))
            .with_norms(NormPlacement::PreAndPost)
            .with_layers(|_, layer| layer.attention_mut().output_gate = Some(OutputGate::Apart));
        let moe = config.moe_with_shared(MoeDefaults::SIGMOID, Presence::Required)?;
        config.with_experts(descriptor, &moe)
    },
    hf_classes: &["AfmoeForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("self_attn.gate_proj", "attn_gate"),
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_mlp_layernorm", "ffn_norm"),
            ("post_mlp_layernorm", "post_ffw_norm"),
            ("mlp.router.gate", "ffn_gate_inp"),
            ("mlp.expert_bias", "exp_probs_b.bias"),
        ],
        shared: &[EXPERTS],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        let config = keys.config;
        let period = config.opt_usize("global_attn_every_n_layers")?.unwrap_or(PERIOD);
        config.count("sliding_window")?;
        keys.find_windows(|layer_idx| !(layer_idx + 1).is_multiple_of(period.max(1)))?;
        keys.find_attention_bias("attention_bias")?;
        find_experts(keys)?;
        if !config.is("mup_enabled")? {
            keys.facts.amend(|descriptor| descriptor.embedding_scale = 1.0);
        }
        keys.usual()?;
        keys.vocab_size()?;
        keys.rope_width()?;
        keys.copy_count("leading_dense_block_count", &["num_dense_layers"])?;
        keys.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        keys.copy_count("expert_shared_count", &["num_shared_experts"])?;
        keys.score_by_sigmoid();
        keys.set("expert_weights_norm", true);
        keys.copy_number("expert_weights_scale", &["route_scale"])?;
        keys.window()?;
        keys.unusual_window_pattern(PERIOD);
        Ok(())
    },
};

/// Reads the experts of a folder. Its router has names of its own, and options that only one value of is in use.
fn find_experts(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    if config.get("score_func").is_some_and(|score| score != "sigmoid") {
        return Err(config.wrong("score_func", "sigmoid"));
    }
    if config.opt_bool("route_norm")? == Some(false) {
        return Err(config.wrong("route_norm", "true"));
    }
    keys.find_router(true)?;
    keys.facts.router = Some(RouterFacts {
        score: Some(ExpertScore::Sigmoid),
        is_normalized: true,
        scale: config.opt_f32("route_scale")?.unwrap_or(1.0),
    });
    keys.find_shared_experts(&["num_shared_experts"])?;
    let n_dense = config.opt_usize("num_dense_layers")?.unwrap_or(0);
    let layers = 0..keys.sizes.n_layers;
    keys.facts.expert_layers = Some(layers.map(|layer_idx| layer_idx >= n_dense).collect());
    Ok(())
}

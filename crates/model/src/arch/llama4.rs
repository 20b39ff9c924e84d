//! Llama 4: three of four layers have chunked attention with rope and normed queries and keys; the others
//! have no positions but a temperature. Some or all layers have experts, whose weight multiplies their input,
//! and a shared network.
//!
//! Rope pairs are adjacent in both formats: folders have that order too. GGUF files state neither the length
//! of a chunk nor the temperature; the values here are those of all published models.
//!
//! Source: transformers, `models/llama4/modeling_llama4.py`; llama.cpp, `src/models/llama4.cpp`.

use tokenmill_backend::{ExpertScore, RopeStyle, Temperature};

use crate::{AttentionDescriptor, Descriptor, LoadError, MoeDescriptor, QkNorm};

use super::{
    Architecture, Change, GgufConfig, GgufKeys, HfConfig, HfLayout, Recast,
    gguf_experts::{MoeDefaults, set_experts},
    granitemoe::with_shared,
};

/// Default period of full-attention layers, which have no positions.
const PERIOD: usize = 4;
/// Positions per chunk, and per step of the temperature.
const CHUNK: usize = 8192;
/// Growth of the scores per step of the temperature.
const TEMPERATURE: f32 = 0.1;
/// The model with this many experts does not norm its queries and keys. Its files do not say so.
const N_EXPERTS_WITHOUT_NORM: usize = 128;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama4",
    from_gguf,
    hf_classes: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
    hf_layout: HfLayout {
        layer: &[
            ("feed_forward.gate_proj", "ffn_gate"),
            ("feed_forward.up_proj", "ffn_up"),
            ("feed_forward.down_proj", "ffn_down"),
            ("feed_forward.router", "ffn_gate_inp"),
            ("feed_forward.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
            ("feed_forward.experts.down_proj", "ffn_down_exps.weight"),
            ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
            ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
        ],
        ignored: &["vision_model.", "multi_modal_projector."],
        changes: &[
            ("ffn_gate_up_exps.weight", Change::TransposeExperts),
            ("ffn_down_exps.weight", Change::TransposeExperts),
        ],
        recasts: &[("ffn_gate_up_exps.weight", Recast::GATE_AND_UP)],
        ..HfLayout::LLAMA
    },
    from_hf: Some(from_hf),
    rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    let n_experts = config.n_experts()?;
    let window = config.opt_usize("attention.sliding_window")?;
    // A window of 0 means neither chunks nor layers without positions.
    let has_chunks = window != Some(0);
    if has_chunks {
        for layer in &mut descriptor.layers {
            layer.attention_mut().window = Some(window.unwrap_or(CHUNK));
        }
        config.set_windows(&mut descriptor, PERIOD)?;
    }
    let has_norm = n_experts != N_EXPERTS_WITHOUT_NORM;
    let temperature = config
        .opt_positive("attention.temperature_scale")?
        .unwrap_or(TEMPERATURE);
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        let has_rope = !has_chunks || attention.window.is_some();
        set_attention(attention, has_rope, has_norm, Some((temperature, CHUNK)));
    }
    config.set_window_rope(&mut descriptor)?;
    // Small models have none.
    if n_experts > 0 {
        let mut moe = config.moe(MoeDefaults {
            is_normalized: false,
            ..MoeDefaults::SIGMOID
        })?;
        set_moe(&mut moe);
        config.set_experts(&mut descriptor, &moe)?;
    }
    Ok(descriptor)
}

fn from_hf(config: &HfConfig) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder()?;
    descriptor.ropes[0].style = RopeStyle::Norm;
    let n_layers = descriptor.layers.len();
    let period = config.opt_usize("no_rope_layer_interval")?.unwrap_or(PERIOD);
    // Despite the name, 1 means that the layer has rope. An empty list counts as absent.
    let has_rope = match config.opt_f32s("no_rope_layers")?.filter(|list| !list.is_empty()) {
        Some(list) if list.len() < n_layers => {
            return Err(config.wrong("no_rope_layers", "a number for each layer"));
        }
        Some(list) => list.iter().map(|&number| number != 0.0).collect(),
        None => (1..=n_layers)
            .map(|layer| !layer.is_multiple_of(period.max(1)))
            .collect::<Vec<_>>(),
    };
    let kinds = ["full_attention", "chunked_attention"];
    let is_chunked = (config.layers_of_two_kinds(kinds, n_layers)?).unwrap_or_else(|| has_rope.clone());
    let chunk = config.opt_usize("attention_chunk_size")?.unwrap_or(CHUNK);
    let has_norm = config.opt_bool("use_qk_norm")?.unwrap_or(true);
    let temperature = if config.opt_bool("attn_temperature_tuning")?.unwrap_or(true) {
        let scale = config.opt_f32("attn_scale")?.unwrap_or(TEMPERATURE);
        Some((scale, config.opt_usize("floor_scale")?.unwrap_or(CHUNK)))
    } else {
        None
    };
    let bias = config.presence("attention_bias")?;
    let n_dense_ff = config.first_usize(&["intermediate_size_mlp"])?;
    for (layer_idx, layer) in descriptor.layers.iter_mut().enumerate() {
        layer.dense_mut().n_ff = n_dense_ff;
        let attention = layer.attention_mut();
        attention.window = is_chunked[layer_idx].then_some(chunk);
        (attention.qkv_bias, attention.output_bias) = (bias, bias);
        set_attention(attention, has_rope[layer_idx], has_norm, temperature);
    }
    // A step of 0 means a model without experts.
    let step = config.opt_usize("interleave_moe_layer_step")?.unwrap_or(1);
    let listed = config.counts("moe_layers")?;
    let has_experts: Vec<bool> = (0..n_layers)
        .map(|layer_idx| match &listed {
            Some(listed) => listed.contains(&layer_idx),
            None => step > 0 && (layer_idx + 1).is_multiple_of(step),
        })
        .collect();
    if has_experts.contains(&true) {
        let mut moe = config.moe(false)?;
        moe.router.score = ExpertScore::Sigmoid;
        set_moe(&mut moe);
        set_experts(&mut descriptor, &moe, |layer_idx| has_experts[layer_idx]);
    }
    Ok(descriptor)
}

/// Sets the norms after rope for layers with rope; layers without may get a temperature, given as scale and
/// interval.
fn set_attention(
    attention: &mut AttentionDescriptor,
    has_rope: bool,
    has_norm: bool,
    temperature: Option<(f32, usize)>,
) {
    attention.is_chunked = attention.window.is_some();
    attention.is_normed_after_rope = true;
    attention.rope = has_rope.then_some(0);
    attention.qk_norm = (has_rope && has_norm).then_some(QkNorm::PlainHead);
    attention.temperature = temperature
        .filter(|_| !has_rope)
        .map(|(scale, interval)| Temperature {
            scale,
            interval,
            offset: 1,
        });
}

/// Sets the shared network, which has the width of one expert.
fn set_moe(moe: &mut MoeDescriptor) {
    moe.weighs_input = true;
    *moe = with_shared(moe.clone(), Some(moe.n_ff));
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set_own_head_width()?;
    keys.vocab_size()?;
    keys.rope_width()?;
    keys.copy_count("feed_forward_length", &["intermediate_size_mlp"])?;
    keys.copy_count("interleave_moe_layer_step", &["interleave_moe_layer_step"])?;
    keys.copy_count("expert_feed_forward_length", &["intermediate_size"])
}

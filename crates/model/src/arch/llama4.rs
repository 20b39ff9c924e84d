//! Llama 4: three of four layers have chunked attention with rope and normed queries and keys; the others
//! have no positions but a temperature. Some or all layers have experts, whose weight multiplies their input,
//! and a shared network.
//!
//! Rope pairs are adjacent in both formats: folders have that order too. GGUF files state neither the length
//! of a chunk nor the temperature; the values here are those of all published models.
//!
//! Source: transformers, `models/llama4/modeling_llama4.py`; llama.cpp, `src/models/llama4.cpp`.

use tokenmill_backend::{ExpertScore, RopeStyle, Temperature};

use crate::{LoadError, QkNorm};

use super::{
    Architecture, Change, GgufKeys, HfLayout, Recast, gguf_experts::MoeDefaults, hf_layers::KINDS, llama,
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
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        let n_experts = config.n_experts()?;
        let window = config.opt_usize("attention.sliding_window")?;
        // A window of 0 means neither chunks nor layers without positions.
        let has_chunks = window != Some(0);
        if has_chunks && config.facts.is_none() {
            for layer in &mut descriptor.layers {
                layer.attention_mut().window = Some(window.unwrap_or(CHUNK));
            }
            config.set_windows(&mut descriptor, PERIOD)?;
        }
        let has_norm = match config.facts {
            Some(facts) => facts.has_qk_norm,
            None => n_experts != N_EXPERTS_WITHOUT_NORM,
        };
        let temperature = config
            .opt_positive("attention.temperature_scale")?
            .unwrap_or(TEMPERATURE);
        let with_rope = config.facts.and_then(|facts| facts.has_rope.as_ref());
        let mut descriptor = descriptor.with_layers(|layer_idx, layer| {
            let attention = layer.attention_mut();
            let has_rope = match with_rope {
                Some(listed) => listed[layer_idx],
                None => !has_chunks || attention.window.is_some(),
            };
            attention.is_chunked = attention.window.is_some();
            attention.is_normed_after_rope = true;
            attention.rope = has_rope.then_some(0);
            attention.qk_norm = (has_rope && has_norm).then_some(QkNorm::PlainHead);
            attention.temperature = (!has_rope).then_some(Temperature {
                scale: temperature,
                interval: CHUNK,
                offset: 1,
            });
        });
        config.set_window_rope(&mut descriptor)?;
        // Small models have none.
        if n_experts == 0 {
            return Ok(descriptor);
        }
        let mut moe = config.moe(MoeDefaults {
            is_normalized: false,
            ..MoeDefaults::SIGMOID
        })?;
        moe.weighs_input = true;
        // The shared network has the width of one expert.
        let n_ff = moe.n_ff;
        config.with_experts(descriptor, &moe.with_shared(n_ff, false))
    },
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
    rule: |keys| {
        let config = keys.config;
        keys.facts.rotate_neighbours();
        keys.find_attention_bias("attention_bias")?;
        find_positions(keys)?;
        find_temperature(keys)?;
        keys.facts.has_qk_norm = config.opt_bool("use_qk_norm")?.unwrap_or(true);
        // A step of 0 means a model without experts.
        let step = config.opt_usize("interleave_moe_layer_step")?.unwrap_or(1);
        let listed = config.counts("moe_layers")?;
        let has_experts: Vec<bool> = (0..keys.sizes.n_layers)
            .map(|layer_idx| match &listed {
                Some(listed) => listed.contains(&layer_idx),
                None => step > 0 && (layer_idx + 1).is_multiple_of(step),
            })
            .collect();
        if has_experts.contains(&true) {
            keys.find_router(false)?.score = Some(ExpertScore::Sigmoid);
        }
        keys.facts.expert_layers = Some(has_experts);
        keys.usual()?;
        keys.set_own_head_width()?;
        keys.vocab_size()?;
        keys.rope_width()?;
        let n_dense_ff = config.count("intermediate_size_mlp")?;
        keys.set_count("feed_forward_length", n_dense_ff)?;
        keys.copy_count("interleave_moe_layer_step", &["interleave_moe_layer_step"])?;
        keys.copy_count("expert_feed_forward_length", &["intermediate_size"])
    },
};

/// Reads which layers of a folder have rope, and which are chunked.
fn find_positions(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    let n_layers = keys.sizes.n_layers;
    let has_rope = llama::has_rope(config, PERIOD, n_layers)?;
    let kinds = ["full_attention", "chunked_attention"];
    let is_chunked =
        (config.layers_of_two_kinds(KINDS, kinds, n_layers)?).unwrap_or_else(|| has_rope.clone());
    let chunk = config.opt_usize("attention_chunk_size")?.unwrap_or(CHUNK);
    let windows = is_chunked.into_iter().take(n_layers);
    keys.facts.windows = windows.map(|is_chunked| is_chunked.then_some(chunk)).collect();
    keys.facts.has_rope = Some(has_rope);
    Ok(())
}

/// Reads the temperature of the layers without positions. Files have no key for its interval.
fn find_temperature(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    let is_tuned = config.opt_bool("attn_temperature_tuning")?.unwrap_or(true);
    let scale = config.opt_f32("attn_scale")?.unwrap_or(TEMPERATURE);
    let interval = config.opt_usize("floor_scale")?.unwrap_or(CHUNK);
    keys.facts.amend_layers(move |_, layer| {
        let temperature = &mut layer.attention_mut().temperature;
        *temperature = temperature.filter(|_| is_tuned).map(|temperature| Temperature {
            scale,
            interval,
            ..temperature
        });
    });
    Ok(())
}

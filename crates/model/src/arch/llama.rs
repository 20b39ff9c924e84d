//! Llama and its variants. In most GGUF files rope pairs are adjacent, because the converter reorders the rows of q and k.
//!
//! `llama` has Mistral, Mixtral and every other model converted under that name, Arcee squared ReLU in the place of a
//! gate, Seed-OSS biases on q, k and v, SmolLM 3 no positions in every fourth layer. The text part of Mistral 3 and
//! Ministral 3 has, in some versions, YaRN and a temperature of attention that grows with the position.
//!
//! Source: transformers, `models/{arcee,seed_oss,smollm3,ministral3}`; llama.cpp, `src/models/{arcee,seed-oss,smollm3,mistral3}.cpp`.

use tokenmill_backend::{Activation, RopeStyle, Temperature};

use crate::LoadError;

use super::{
    Architecture, GgufKeys, HfConfig, HfLayout, Recast, gguf_experts::MoeDefaults,
    hf_experts::MIXTRAL_EXPERTS, hf_layout::VISION,
};

/// Default period of SmolLM 3's layers without positions.
const PERIOD: usize = 4;

const LAYOUT: HfLayout = HfLayout {
    recasts: Recast::NEIGHBOURS,
    ..HfLayout::LLAMA
};

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    from_gguf: |config| {
        let descriptor = config.decoder(RopeStyle::Norm)?;
        if config.n_experts()? == 0 {
            return Ok(descriptor);
        }
        config.with_experts(descriptor, &config.moe(MoeDefaults::NORMALIZED)?)
    },
    hf_classes: &[
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MinistralForCausalLM",
        "MixtralForCausalLM",
    ],
    hf_layout: HfLayout {
        layer: MIXTRAL_EXPERTS,
        ..LAYOUT
    },
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        if keys.config.get("num_local_experts").is_some() {
            keys.find_router(true)?;
        }
        windowed(keys)
    },
};

pub(super) const MISTRAL_3: Architecture = Architecture {
    name: "mistral3",
    from_gguf: |config| {
        let descriptor = config.decoder(RopeStyle::Norm)?;
        let Some(scale) = config.opt_positive("attention.temperature_scale")? else {
            return Ok(descriptor);
        };
        let temperature = Temperature {
            scale,
            interval: config.usize("rope.scaling.original_context_length")?,
            offset: 0,
        };
        Ok(descriptor.with_layers(|_, layer| layer.attention_mut().temperature = Some(temperature)))
    },
    hf_classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
    hf_layout: HfLayout {
        ignored: VISION,
        ..LAYOUT
    },
    rule: |keys| {
        // A key of its own states the multiplier of the logarithm.
        keys.states_yarn_magnitude = false;
        windowed(keys)?;
        let rope = keys.config.rope_parameters()?;
        if let Some(multiplier) = rope.opt_f32("mscale_all_dim")? {
            keys.set("rope.scaling.yarn_log_multiplier", multiplier);
        }
        if let Some(scale) = rope.opt_f32("llama_4_scaling_beta")? {
            let interval = rope.count("original_max_position_embeddings")?;
            keys.set("attention.temperature_scale", scale);
            // A rope without YaRN has the interval too.
            keys.set_count("rope.scaling.original_context_length", interval)?;
        }
        Ok(())
    },
};

pub(super) const ARCEE: Architecture = Architecture {
    name: "arcee",
    from_gguf: |config| Ok((config.decoder(RopeStyle::Norm)?).without_gate(Activation::ReluSquared)),
    hf_classes: &["ArceeForCausalLM"],
    hf_layout: LAYOUT,
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        keys.usual()?;
        keys.set_own_head_width()?;
        keys.vocab_size()?;
        keys.rope_width()
    },
};

pub(super) const SEED_OSS: Architecture = Architecture {
    name: "seed_oss",
    from_gguf: |config| config.decoder(RopeStyle::Neox),
    hf_classes: &["SeedOssForCausalLM"],
    hf_layout: HfLayout {
        recasts: &[Recast::POST_ATTENTION],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        keys.facts.output_bias = Some(keys.config.presence("attention_out_bias")?);
        keys.usual()?;
        keys.pooling()
    },
};

pub(super) const SMOLLM_3: Architecture = Architecture {
    name: "smollm3",
    from_gguf: |config| {
        let is_last_of_period = |layer_idx: usize| (layer_idx + 1).is_multiple_of(PERIOD);
        Ok(config.decoder(RopeStyle::Norm)?.with_layers(|layer_idx, layer| {
            layer.attention_mut().rope = (!is_last_of_period(layer_idx)).then_some(0);
        }))
    },
    hf_classes: &["SmolLM3ForCausalLM"],
    hf_layout: LAYOUT,
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        let has_rope = has_rope(keys.config, PERIOD, keys.sizes.n_layers)?;
        if keys.config.uses_windows(has_rope.len())? {
            keys.find_windows(|layer_idx| !has_rope[layer_idx])?;
        }
        keys.facts.has_rope = Some(has_rope);
        keys.usual()?;
        keys.vocab_size()?;
        keys.rope_width()
    },
};

/// Collects the keys of a folder whose window is that of all layers.
fn windowed(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_windows(|_| true)?;
    keys.usual()?;
    keys.set_own_head_width()?;
    keys.vocab_size()?;
    keys.rope_width()?;
    keys.window()
}

/// Reads which layers of a folder have rope: as a list says, or else all but the last of each period.
pub(super) fn has_rope(config: &HfConfig, period: usize, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    let key = "no_rope_layers";
    // Despite the name, 1 means that the layer has rope. An empty list counts as absent.
    if let Some(listed) = config.opt_f32s(key)?.filter(|listed| !listed.is_empty()) {
        if listed.len() < n_layers {
            return Err(config.wrong(key, "a number for each layer"));
        }
        return Ok(listed[..n_layers].iter().map(|&number| number != 0.0).collect());
    }
    let period = config
        .opt_usize("no_rope_layer_interval")?
        .unwrap_or(period)
        .max(1);
    Ok((1..=n_layers)
        .map(|layer| !layer.is_multiple_of(period))
        .collect())
}

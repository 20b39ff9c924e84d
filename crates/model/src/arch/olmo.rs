//! OLMo 2 and 3, and OLMoE: norms of whole rows of q and k. OLMo 2 has norms after each half instead of before; in OLMo 3,
//! three of four layers have a window. OLMoE has experts whose weights are not normalized.
//!
//! Source: llama.cpp, `src/models/olmo2.cpp`; transformers, `models/olmo3/modeling_olmo3.py`.

use tokenmill_backend::RopeStyle;

use crate::{LoadError, NormPlacement, QkNorm, RopeDescriptor, RopeScaling};

use super::{Architecture, HfLayout, gguf_experts::MoeDefaults, hf_experts::EXPERTS, hf_layout::POST_NORMS};

/// Default period of the layers with full attention.
const PERIOD: usize = 4;

pub(super) const OLMO_2: Architecture = Architecture {
    name: "olmo2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_windows(&mut descriptor, PERIOD)?;
        // Within a window, no distance exceeds those seen in training.
        let unscaled = RopeDescriptor {
            scaling: RopeScaling::None,
            ..descriptor.ropes[0].clone()
        };
        let mut descriptor = descriptor
            .with_norms(NormPlacement::Post)
            .with_qk_norm(QkNorm::Row);
        descriptor = descriptor.with_local_rope(config, unscaled);
        config.set_window_rope(&mut descriptor)?;
        Ok(descriptor)
    },
    hf_classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
    hf_layout: HfLayout {
        layer: POST_NORMS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        if keys.config.class()? == "Olmo3ForCausalLM" {
            keys.find_windows(|layer_idx| !(layer_idx + 1).is_multiple_of(PERIOD))?;
        }
        keys.usual()?;
        keys.windows_if_any()
    },
};

pub(super) const OLMOE: Architecture = Architecture {
    name: "olmoe",
    from_gguf: |config| {
        let descriptor = (config.decoder(RopeStyle::Neox)?).with_qk_norm(QkNorm::Row);
        config.with_experts(descriptor, &config.moe(MoeDefaults::PLAIN)?)
    },
    hf_classes: &["OlmoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        if keys.config.get("clip_qkv").is_some() {
            return Err(LoadError::UnsupportedFeature {
                arch: keys.arch.to_owned(),
                feature: "clipped queries, keys and values (`clip_qkv`)".to_owned(),
            });
        }
        keys.find_attention_bias("attention_bias")?;
        keys.find_router(false)?;
        keys.usual()?;
        keys.pooling()
    },
};

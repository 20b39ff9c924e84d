//! OLMoE: norms of whole rows of q and k, and experts whose weights are not normalized.

use tokenmill_backend::RopeStyle;

use crate::{LoadError, QkNorm};

use super::{Architecture, HfLayout, gguf_experts::MoeDefaults, hf_experts::EXPERTS};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmoe",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qk_norm = Some(QkNorm::Row);
        }
        config.set_experts(&mut descriptor, &config.moe(MoeDefaults::PLAIN)?)?;
        Ok(descriptor)
    },
    hf_classes: &["OlmoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        if keys.config.get("clip_qkv").is_some() {
            return Err(LoadError::UnsupportedFeature {
                arch: "olmoe".to_owned(),
                feature: "clipped queries, keys and values (`clip_qkv`)".to_owned(),
            });
        }
        keys.find_attention_bias("attention_bias")?;
        keys.find_router(false)?;
        keys.usual()?;
        keys.pooling()
    },
};

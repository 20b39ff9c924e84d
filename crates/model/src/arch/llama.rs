//! Llama and the models that use its files: Mistral, Mixtral, and every other model converted as `llama`.
//!
//! In GGUF files rope pairs are adjacent, because the converter reorders the rows of q and k. Biases are used
//! if the file has them.

use tokenmill_backend::RopeStyle;

use crate::Presence;

use super::{
    Architecture, HfLayout, Recast,
    gguf_experts::{MoeDefaults, set_experts},
    hf_experts::MIXTRAL_EXPERTS,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = Presence::Optional;
            layer.attention_mut().output_bias = Presence::Optional;
            layer.dense_mut().bias = Presence::Optional;
        }
        if config.n_experts()? > 0 {
            config.set_experts(&mut descriptor, &config.moe(MoeDefaults::NORMALIZED)?)?;
        }
        Ok(descriptor)
    },
    hf_classes: &[
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MinistralForCausalLM",
        "MixtralForCausalLM",
    ],
    hf_layout: HfLayout {
        layer: MIXTRAL_EXPERTS,
        recasts: Recast::NEIGHBOURS,
        ..HfLayout::LLAMA
    },
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        let attention_bias = config.presence("attention_bias")?;
        let ffn_bias = config.presence("mlp_bias")?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = attention_bias;
            layer.attention_mut().output_bias = attention_bias;
            layer.dense_mut().bias = ffn_bias;
        }
        config.set_windows(&mut descriptor, |_| true)?;
        if config.get("num_local_experts").is_some() {
            set_experts(&mut descriptor, &config.moe(true)?, |_| true);
        }
        Ok(descriptor)
    },
    rule: |keys| {
        keys.usual()?;
        keys.set_own_head_width()?;
        keys.vocab_size()?;
        keys.rope_width()?;
        keys.window()
    },
};

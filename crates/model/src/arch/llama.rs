//! Llama and the models that use its files: Mistral, Mixtral, and every other model converted as `llama`.
//!
//! In GGUF files rope pairs are adjacent, because the converter reorders the rows of q and k. Biases are used
//! if the file has them.

use tokenmill_backend::RopeStyle;

use super::{Architecture, HfLayout, Recast, gguf_experts::MoeDefaults, hf_experts::MIXTRAL_EXPERTS};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
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
    rule: |keys| {
        keys.find_biases(["attention_bias", "mlp_bias"])?;
        keys.find_windows(|_| true)?;
        if keys.config.get("num_local_experts").is_some() {
            keys.find_router(true)?;
        }
        keys.usual()?;
        keys.set_own_head_width()?;
        keys.vocab_size()?;
        keys.rope_width()?;
        keys.window()
    },
};

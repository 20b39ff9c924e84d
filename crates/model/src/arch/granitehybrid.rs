//! Granite 4: Mamba 2 where a layer has no KV heads, and attention, with the multipliers of Granite; dense, or with experts and
//! a network next to them. Some have no positions at all.
//!
//! Source: transformers, `models/granitemoehybrid/modeling_granitemoehybrid.py`; llama.cpp, `src/models/granite-hybrid.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, MixerDescriptor, Presence};

use super::{
    Architecture, GgufConfig, HfLayout, gguf_experts::set_experts, granite::set_gguf_multipliers,
    granitemoe::with_shared,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granitehybrid",
    from_gguf,
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    set_gguf_multipliers(config, &mut descriptor)?;
    // The family's files say with this key whether there is rope.
    let has_rope = config.opt_bool("rope.scaling.finetuned")?.unwrap_or(true);
    for layer in &mut descriptor.layers {
        if layer.attention_mut().n_kv_heads == 0 {
            layer.mixer = MixerDescriptor::Ssm(config.mamba2(true)?);
            continue;
        }
        let attention = layer.attention_mut();
        attention.rope = attention.rope.filter(|_| has_rope);
        attention.qkv_bias = Presence::Optional;
        attention.output_bias = Presence::Optional;
    }
    if config.n_experts()? > 0 {
        let n_shared_ff = config.opt_usize("expert_shared_feed_forward_length")?;
        set_experts(
            &mut descriptor,
            &with_shared(config.moe(true)?, n_shared_ff),
            |_| true,
        );
    }
    Ok(descriptor)
}

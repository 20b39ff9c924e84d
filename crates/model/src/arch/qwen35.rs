//! Qwen 3.5 to 3.8 and Qwen 3 Next: gated delta nets, and attention with a gate in every fourth layer; dense or with experts.
//!
//! Rope turns a part of each head. Its sections are for images: for text all of them have the token's position, which is
//! what plain rope gives.
//!
//! Source: transformers, `models/qwen3_next/modeling_qwen3_next.py` and `models/qwen3_5_moe/modeling_qwen3_5_moe.py`.

use tokenmill_backend::{KeyHeads, RopeStyle};

use crate::{DeltaGates, Descriptor, LoadError, OutputGate, QkNorm};

use super::{Architecture, GgufConfig, HfLayout, qwen2moe::with_gated_network};

pub(super) const QWEN_35: Architecture = Architecture {
    name: "qwen35",
    // The converter has put the value heads in the order of a repeated list of key heads.
    from_gguf: |config| hybrid(config, KeyHeads::Tiled, DeltaGates::Apart),
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

pub(super) const QWEN_35_MOE: Architecture = Architecture {
    name: "qwen35moe",
    from_gguf: |config| {
        let mut descriptor = (QWEN_35.from_gguf)(config)?;
        set_experts(config, &mut descriptor)?;
        Ok(descriptor)
    },
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

pub(super) const QWEN_3_NEXT: Architecture = Architecture {
    name: "qwen3next",
    from_gguf: |config| {
        let mut descriptor = hybrid(config, KeyHeads::Grouped, DeltaGates::ByKeyHead)?;
        set_experts(config, &mut descriptor)?;
        Ok(descriptor)
    },
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

fn hybrid(config: &GgufConfig<'_>, key_heads: KeyHeads, gates: DeltaGates) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    let recurrent = config.recurrent_layers(descriptor.layers.len())?;
    for (layer, is_recurrent) in descriptor.layers.iter_mut().zip(recurrent) {
        if is_recurrent {
            layer.mixer = config.delta_net(key_heads, gates)?;
        } else {
            layer.attention_mut().qk_norm = Some(QkNorm::Head);
            layer.attention_mut().output_gate = Some(OutputGate::InQuery);
        }
    }
    descriptor.tensor_names = &[("ffn_norm.weight", "post_attention_norm.weight")];
    Ok(descriptor)
}

fn set_experts(config: &GgufConfig<'_>, descriptor: &mut Descriptor) -> Result<(), LoadError> {
    let n_shared_ff = config.usize("expert_shared_feed_forward_length")?;
    config.set_experts(descriptor, &with_gated_network(config.moe(true)?, n_shared_ff))
}

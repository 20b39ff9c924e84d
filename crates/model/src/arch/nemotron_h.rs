//! Nemotron-H and Nemotron 3: layers of one half each, Mamba 2, attention without positions, or a feed-forward network with
//! squared ReLU, which in the later ones has experts and a network next to them.
//!
//! Source: transformers, `models/nemotron_h/modeling_nemotron_h.py`; llama.cpp, `src/models/nemotron-h.cpp`.

use tokenmill_backend::{Activation, ExpertScore, RopeStyle};

use crate::{Descriptor, FfnDescriptor, LoadError, MixerDescriptor, MoeDescriptor, Presence};

use super::{Architecture, GgufConfig, HfLayout};

pub(super) const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    from_gguf,
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

pub(super) const NEMOTRON_H_MOE: Architecture = Architecture {
    name: "nemotron_h_moe",
    from_gguf: |config| {
        let mut descriptor = from_gguf(config)?;
        let mut moe = experts(config.moe(true)?);
        moe.shared = config.shared_experts(&moe)?;
        for (layer_idx, layer) in descriptor.layers.iter_mut().enumerate() {
            if config.has_tensor(&format!("blk.{layer_idx}.ffn_gate_inp.weight")) {
                layer.ffn = FfnDescriptor::Moe(moe.clone());
            }
        }
        Ok(descriptor)
    },
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    descriptor.ropes.clear();
    for layer in &mut descriptor.layers {
        layer.attention_mut().rope = None;
        if layer.dense_mut().n_ff > 0 {
            layer.mixer = MixerDescriptor::None;
            layer.dense_mut().activation = Activation::ReluSquared;
            layer.dense_mut().is_gated = false;
            continue;
        }
        layer.ffn = FfnDescriptor::None;
        if layer.attention_mut().n_kv_heads == 0 {
            layer.mixer = MixerDescriptor::Ssm(config.mamba2(true)?);
        }
    }
    descriptor.tensor_names = &[("ffn_norm.weight", "attn_norm.weight")];
    Ok(descriptor)
}

fn experts(mut moe: MoeDescriptor) -> MoeDescriptor {
    moe.router.score = ExpertScore::Sigmoid;
    moe.router.choice_bias = Presence::Optional;
    moe.activation = Activation::ReluSquared;
    moe.is_gated = false;
    moe
}

//! Nemotron-H: layers of one half each, Mamba 2, attention without positions, or a network with squared ReLU.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{FfnDescriptor, MixerDescriptor};

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron_h",
    from_gguf: |config| {
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
    },
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

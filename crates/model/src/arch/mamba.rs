//! Mamba: layers of one half each, a state space model whose decays depend on the state's index.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{FfnDescriptor, MixerDescriptor};

use super::{
    Architecture, HfLayout,
    hf_recurrent::{BACKBONE, SSM, SSM_CHANGES},
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mamba",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        descriptor.ropes.clear();
        for layer in &mut descriptor.layers {
            layer.mixer = MixerDescriptor::Ssm(config.mamba()?);
            layer.ffn = FfnDescriptor::None;
        }
        Ok(descriptor)
    },
    hf_classes: &["MambaForCausalLM"],
    hf_layout: HfLayout {
        prefixes: &["backbone."],
        layer: SSM,
        network: BACKBONE,
        changes: SSM_CHANGES,
        ..HfLayout::LLAMA
    },
    from_hf: |config| {
        config.require_activation(Activation::Silu, "silu, which its recurrent layers have")?;
        let mut descriptor = config.without_attention().decoder()?;
        descriptor.ropes.clear();
        let ssm = config.mamba(descriptor.n_embd)?;
        for layer in &mut descriptor.layers {
            layer.mixer = MixerDescriptor::Ssm(ssm);
            layer.ffn = FfnDescriptor::None;
        }
        Ok(descriptor)
    },
};

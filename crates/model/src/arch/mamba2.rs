//! Mamba 2: layers of one half each, a state space model with heads.

use tokenmill_backend::RopeStyle;

use crate::{FfnDescriptor, MixerDescriptor};

use super::{
    Architecture, HfLayout, Recast,
    hf_recurrent::{BACKBONE, SSM, SSM_CHANGES},
    mamba,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mamba2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        descriptor.ropes.clear();
        for layer in &mut descriptor.layers {
            layer.mixer = MixerDescriptor::Ssm(config.mamba2(true)?);
            layer.ffn = FfnDescriptor::None;
        }
        Ok(descriptor)
    },
    hf_classes: &["Mamba2ForCausalLM"],
    hf_layout: HfLayout {
        prefixes: &["backbone."],
        layer: SSM,
        network: BACKBONE,
        changes: SSM_CHANGES,
        recasts: Recast::SSM,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        let ssm = keys.config.mamba2(true)?;
        mamba::rule(keys, ssm)
    },
};

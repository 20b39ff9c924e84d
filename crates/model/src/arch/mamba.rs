//! Mamba: layers of one half each, a state space model whose decays depend on the state's index.

use tokenmill_backend::RopeStyle;

use crate::{FfnDescriptor, MixerDescriptor};

use super::{Architecture, HfLayout};

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
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

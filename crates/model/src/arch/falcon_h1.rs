//! Falcon-H1: attention and Mamba 2 next to each other in every layer. GGUF files have its multipliers in the weights.
//!
//! Source: transformers, `models/falcon_h1/modeling_falcon_h1.py`; llama.cpp, `src/models/falcon-h1.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, MixerDescriptor};

use super::{Architecture, GgufConfig, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "falcon-h1",
    from_gguf,
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    let ssm = config.mamba2(config.has_tensor("blk.0.ssm_norm.weight"))?;
    for layer in &mut descriptor.layers {
        layer.mixer = MixerDescriptor::Both {
            attention: layer.attention_mut().clone(),
            ssm,
        };
    }
    descriptor.tensor_names = &[("ffn_norm.weight", "ffn_norm")];
    Ok(descriptor)
}

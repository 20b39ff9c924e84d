//! Mamba: layers of one half each, a state space model whose decays depend on the state's index.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{FfnDescriptor, LoadError, MixerDescriptor};

use super::{
    Architecture, GgufKeys, HfLayout, Recast,
    gguf_form::UNBOUNDED,
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
        recasts: &[("ssm_conv1d.weight", Recast::Squeeze)],
        ..HfLayout::LLAMA
    },
    from_hf: Some(|config| {
        config.require_activation(Activation::Silu, "silu, which its recurrent layers have")?;
        let mut descriptor = config.without_attention().decoder()?;
        descriptor.ropes.clear();
        let ssm = config.mamba(descriptor.n_embd)?;
        for layer in &mut descriptor.layers {
            layer.mixer = MixerDescriptor::Ssm(ssm);
            layer.ffn = FfnDescriptor::None;
        }
        Ok(descriptor)
    }),
    rule,
};

/// Collects the keys of a folder of either version.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.set("context_length", UNBOUNDED);
    keys.set("feed_forward_length", 0_u32);
    keys.set("attention.head_count", 0_u32);
    keys.set("attention.layer_norm_rms_epsilon", keys.descriptor.norm.eps);
    keys.state_space()
}

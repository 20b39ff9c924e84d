//! Mamba: layers of one half each, a state space model whose decays depend on the state's index.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{FfnDescriptor, LoadError, MixerDescriptor, SsmDescriptor};

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
    rule: |keys| {
        let ssm = keys.config.mamba(keys.sizes.n_embd)?;
        rule(keys, ssm)
    },
};

/// Collects the keys of a folder of either version of Mamba.
pub(super) fn rule(keys: &mut GgufKeys<'_>, ssm: SsmDescriptor) -> Result<(), LoadError> {
    (keys.config).require_activation(Activation::Silu, "silu, which its recurrent layers have")?;
    keys.sizes()?;
    keys.set("context_length", UNBOUNDED);
    keys.set("feed_forward_length", 0_u32);
    keys.set("attention.head_count", 0_u32);
    keys.set("attention.layer_norm_rms_epsilon", keys.sizes.norm_eps);
    keys.state_space(ssm)
}

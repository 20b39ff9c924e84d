//! Mamba and Mamba 2: layers of one half each, a state space model. In the first version its decays depend on the state's
//! index; in the second it has heads.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Descriptor, FfnDescriptor, LoadError, MixerDescriptor, SsmDescriptor};

use super::{
    Architecture, GgufKeys, HfLayout, Recast,
    gguf_keys::UNBOUNDED,
    hf_recurrent::{BACKBONE, SSM, SSM_CHANGES},
};

pub(super) const MAMBA: Architecture = Architecture {
    name: "mamba",
    from_gguf: |config| Ok(of_ssm(config.mamba()?, config.decoder(RopeStyle::Neox)?)),
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

pub(super) const MAMBA_2: Architecture = Architecture {
    name: "mamba2",
    from_gguf: |config| Ok(of_ssm(config.mamba2(true)?, config.decoder(RopeStyle::Neox)?)),
    hf_classes: &["Mamba2ForCausalLM"],
    hf_layout: HfLayout {
        recasts: Recast::SSM,
        ..MAMBA.hf_layout
    },
    rule: |keys| {
        let ssm = keys.config.mamba2(true)?;
        rule(keys, ssm)
    },
};

/// Replaces each layer with a state space model.
fn of_ssm(ssm: SsmDescriptor, descriptor: Descriptor) -> Descriptor {
    descriptor.without_rope().with_layers(|_, layer| {
        layer.mixer = MixerDescriptor::Ssm(ssm);
        layer.ffn = FfnDescriptor::None;
    })
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>, ssm: SsmDescriptor) -> Result<(), LoadError> {
    (keys.config).require_activation(Activation::Silu, "silu, which its recurrent layers have")?;
    keys.sizes()?;
    keys.set("context_length", UNBOUNDED);
    keys.set("feed_forward_length", 0_u32);
    keys.set("attention.head_count", 0_u32);
    keys.set("attention.layer_norm_rms_epsilon", keys.sizes.norm_eps);
    keys.state_space(ssm)
}

//! Reads recurrent layers from GGUF files. Several architectures share each kind.

use tokenmill_backend::KeyHeads;

use crate::{
    DeltaGates, DeltaNetDescriptor, LoadError, MixerDescriptor, Presence, ShortConvDescriptor, SsmDescriptor,
    SsmKind, error::check,
};

use super::GgufConfig;

impl GgufConfig<'_> {
    /// Describes a gated delta net.
    pub(super) fn delta_net(
        &self,
        key_heads: KeyHeads,
        gates: DeltaGates,
    ) -> Result<MixerDescriptor, LoadError> {
        let n_v_heads = self.usize("ssm.time_step_rank")?;
        Ok(MixerDescriptor::DeltaNet(DeltaNetDescriptor {
            n_k_heads: self.usize("ssm.group_count")?,
            n_v_heads,
            head_dim_k: self.usize("ssm.state_size")?,
            head_dim_v: self.width_of_each("width of all the delta net's values", n_v_heads)?,
            n_taps: self.usize("ssm.conv_kernel")?,
            key_heads,
            gates,
        }))
    }

    /// Returns the inner width of each of `n_heads` heads.
    fn width_of_each(&self, what: &'static str, n_heads: usize) -> Result<usize, LoadError> {
        let width = self.usize("ssm.inner_size")?;
        // A count of zero heads is refused under its own name.
        check(
            what,
            width,
            n_heads == 0 || width > 0 && width.is_multiple_of(n_heads),
            "a multiple of the time step rank",
        )?;
        Ok(width / n_heads.max(1))
    }

    /// Describes a Mamba 2 model.
    pub(super) fn mamba2(&self, has_norm: bool) -> Result<SsmDescriptor, LoadError> {
        let n_heads = self.usize("ssm.time_step_rank")?;
        let head_dim = self.width_of_each("state space width", n_heads)?;
        let n_groups = self.usize("ssm.group_count")?;
        self.ssm(SsmKind::Mamba2 { has_norm }, n_heads, head_dim, n_groups)
    }

    /// Describes a Mamba model.
    pub(super) fn mamba(&self) -> Result<SsmDescriptor, LoadError> {
        let kind = SsmKind::Mamba {
            dt_rank: self.usize("ssm.time_step_rank")?,
            has_norms: self.opt_bool("ssm.dt_b_c_rms")?.unwrap_or(false),
        };
        self.ssm(kind, self.usize("ssm.inner_size")?, 1, 1)
    }

    fn ssm(
        &self,
        kind: SsmKind,
        n_heads: usize,
        head_dim: usize,
        n_groups: usize,
    ) -> Result<SsmDescriptor, LoadError> {
        Ok(SsmDescriptor {
            kind,
            n_heads,
            head_dim,
            n_groups,
            n_state: self.usize("ssm.state_size")?,
            n_taps: self.usize("ssm.conv_kernel")?,
            conv_bias: Presence::Optional,
            bias: Presence::Optional,
        })
    }

    /// Describes a gated short convolution.
    pub(super) fn short_conv(&self) -> Result<MixerDescriptor, LoadError> {
        Ok(MixerDescriptor::ShortConv(ShortConvDescriptor {
            n_channels: self.usize("embedding_length")?,
            n_taps: self.usize("shortconv.l_cache")?,
            bias: Presence::Optional,
        }))
    }

    /// Returns whether each layer is recurrent, in networks where the other layers have attention: from a
    /// list, or all but every n-th.
    pub(super) fn recurrent_layers(&self, n_layers: usize) -> Result<Vec<bool>, LoadError> {
        let name = "attention.recurrent_layers";
        // Lists cover only the decoder's layers; the layers after them have attention.
        let n_listed = self.layer_counts()?.0.min(n_layers);
        if let Some(mut layers) = self.opt_flags("list of recurrent layers", name, n_listed)? {
            layers.resize(n_layers, false);
            return Ok(layers);
        }
        let interval = self.opt_count("full_attention_interval")?.unwrap_or(4);
        Ok((1..=n_layers)
            .map(|layer| !layer.is_multiple_of(interval))
            .collect())
    }
}

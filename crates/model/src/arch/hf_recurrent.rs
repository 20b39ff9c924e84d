//! Reads recurrent layers from Hugging Face configurations and folders. Several architectures share each
//! kind.
//!
//! Invariant: value heads of a folder are in the order of their key heads, as the descriptor states; no
//! weights are reordered.

use crate::{LoadError, Presence, SsmDescriptor, SsmKind};

use super::{Change, HfConfig, hf_layout::Names, hf_sizes::N_EMBD};

/// Tensor names of Mamba and Mamba 2 in layers with no other part.
pub(super) const SSM: Names = &[
    ("norm", "attn_norm"),
    ("mixer.in_proj", "ssm_in"),
    ("mixer.conv1d", "ssm_conv1d"),
    ("mixer.x_proj", "ssm_x"),
    ("mixer.dt_proj", "ssm_dt"),
    ("mixer.A_log", "ssm_a"),
    ("mixer.D", "ssm_d"),
    ("mixer.dt_bias", "ssm_dt.bias"),
    ("mixer.norm", "ssm_norm"),
    ("mixer.out_proj", "ssm_out"),
];

/// Tensor names of Mamba 2 in layers with other parts.
pub(super) const MAMBA_2: Names = &[
    ("mamba.in_proj", "ssm_in"),
    ("mamba.conv1d", "ssm_conv1d"),
    ("mamba.A_log", "ssm_a"),
    ("mamba.D", "ssm_d"),
    ("mamba.dt_bias", "ssm_dt.bias"),
    ("mamba.norm", "ssm_norm"),
    ("mamba.out_proj", "ssm_out"),
];

/// Names of tensors outside the layers, in folders that call the network `backbone`.
pub(super) const BACKBONE: Names = &[
    ("embeddings", "token_embd"),
    ("embedding", "token_embd"),
    ("norm_f", "output_norm"),
];

/// Changes of the numbers of state space models.
pub(super) const SSM_CHANGES: &[(&str, Change)] = &[
    ("ssm_a", Change::NegExp),
    ("ssm_norm.weight", Change::SplitGroups),
];

impl HfConfig {
    /// Converts a boolean under the first of some keys that exists to a [`Presence`].
    fn first_presence(&self, keys: [&str; 2], default: Presence) -> Result<Presence, LoadError> {
        let claims = [self.opt_bool(keys[0])?, self.opt_bool(keys[1])?];
        Ok(claims[0].or(claims[1]).map_or(default, Presence::of))
    }

    /// Reads a count, which `auto` leaves to a formula, under the first of some keys that exists.
    fn count_or_auto(&self, keys: &[&str], auto: usize) -> Result<usize, LoadError> {
        match keys.iter().find_map(|key| self.get(key)) {
            Some(value) if value == "auto" => Ok(auto),
            _ => self.first_usize(keys),
        }
    }

    /// Describes a Mamba model.
    pub(super) fn mamba(&self, n_embd: usize) -> Result<SsmDescriptor, LoadError> {
        let n_heads = match self.opt_usize("intermediate_size")? {
            Some(width) => width,
            None => n_embd.saturating_mul(self.opt_usize("expand")?.unwrap_or(2)),
        };
        let kind = SsmKind::Mamba {
            dt_rank: self.count_or_auto(&["time_step_rank"], n_embd.div_ceil(16))?,
            has_norms: false,
        };
        self.ssm(kind, n_heads, 1, 1)
    }

    /// Describes a Mamba 2 model.
    pub(super) fn mamba2(&self, has_norm: bool) -> Result<SsmDescriptor, LoadError> {
        if let Some(limits) = self.get("time_step_limit") {
            // Without limits, the upper limit is infinite, and JSON has no number for that.
            let is_unlimited = matches!(
                limits.as_array().map(Vec::as_slice),
                Some([low, high]) if low.as_f64() == Some(0.0) && !high.is_number()
            );
            if !is_unlimited {
                return Err(self.wrong("time_step_limit", "step sizes without limits"));
            }
        }
        let n_heads = self.first_usize(&["mamba_n_heads", "mamba_num_heads", "num_heads"])?;
        let expand = self.opt_usize("mamba_expand")?.unwrap_or(2);
        let width = self.first_usize(N_EMBD)?.saturating_mul(expand) / n_heads.max(1);
        let head_dim = self.count_or_auto(&["mamba_d_head", "mamba_head_dim", "head_dim"], width)?;
        let n_groups = self.first_usize(&["mamba_n_groups", "n_groups"])?;
        self.ssm(SsmKind::Mamba2 { has_norm }, n_heads, head_dim, n_groups)
    }

    /// Describes a state space model; its other sizes have names of their own in the family of Bamba.
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
            n_state: self.first_usize(&["mamba_d_state", "ssm_state_size", "state_size"])?,
            n_taps: self.first_usize(&["mamba_d_conv", "conv_kernel"])?,
            conv_bias: self.first_presence(["mamba_conv_bias", "use_conv_bias"], Presence::Required)?,
            bias: self.first_presence(["use_bias", "mamba_proj_bias"], Presence::Absent)?,
        })
    }
}

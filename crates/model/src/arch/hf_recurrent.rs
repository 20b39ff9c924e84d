//! Reads recurrent layers from Hugging Face configurations and folders. Several architectures share each
//! kind.
//!
//! Invariant: value heads of a folder are in the order of their key heads, as the descriptor states; no
//! weights are reordered.

use crate::{LoadError, Presence, SsmDescriptor, SsmKind};
use serde_json::Value;

use super::{Change, HfConfig, hf_layout::Names};

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

/// The keys of Mamba 2's sizes in a family of configurations.
pub(super) struct Mamba2Keys {
    pub(super) n_heads: &'static str,
    pub(super) head_dim: &'static str,
    pub(super) n_groups: &'static str,
    pub(super) n_state: &'static str,
    pub(super) n_taps: &'static str,
    pub(super) conv_bias: &'static str,
    pub(super) bias: &'static str,
}

impl Mamba2Keys {
    /// The keys of Bamba and the families that follow it.
    pub(super) const BAMBA: Self = Self {
        n_heads: "mamba_n_heads",
        head_dim: "mamba_d_head",
        n_groups: "mamba_n_groups",
        n_state: "mamba_d_state",
        n_taps: "mamba_d_conv",
        conv_bias: "mamba_conv_bias",
        bias: "mamba_proj_bias",
    };
}

impl HfConfig {
    /// Reads a required count.
    pub(super) fn count(&self, key: &str) -> Result<usize, LoadError> {
        self.opt_usize(key)?.ok_or_else(|| self.wrong(key, "a count"))
    }

    /// Converts a boolean to a [`Presence`]; a missing key means required.
    fn presence_or_required(&self, key: &str) -> Result<Presence, LoadError> {
        Ok(match self.opt_bool(key)? {
            Some(false) => Presence::Absent,
            _ => Presence::Required,
        })
    }

    /// Returns the kinds of the layers, under the first of some keys that exists.
    pub(super) fn layer_kinds(&self, keys: &[&str]) -> Result<Option<Vec<&str>>, LoadError> {
        let Some(key) = keys.iter().find(|key| self.get(key).is_some()) else {
            return Ok(None);
        };
        let kinds = self.get(key).and_then(Value::as_array);
        let kinds = kinds.and_then(|kinds| kinds.iter().map(Value::as_str).collect());
        kinds
            .map(Some)
            .ok_or_else(|| self.wrong(key, "the name of a kind for each layer"))
    }

    /// Refuses a list of kinds whose length is not the number of layers.
    pub(super) fn check_kinds(&self, key: &str, n_kinds: usize, n_layers: usize) -> Result<(), LoadError> {
        if n_kinds == n_layers {
            Ok(())
        } else {
            Err(self.wrong(key, &format!("a kind for each of {n_layers} layers")))
        }
    }

    /// Returns whether each layer is of the second of two kinds, if `layer_types` exists.
    pub(super) fn layers_of_two_kinds(
        &self,
        [first, second]: [&str; 2],
        n_layers: usize,
    ) -> Result<Option<Vec<bool>>, LoadError> {
        let key = "layer_types";
        let Some(kinds) = self.layer_kinds(&[key])? else {
            return Ok(None);
        };
        self.check_kinds(key, kinds.len(), n_layers)?;
        let is_known = kinds.iter().all(|&kind| kind == first || kind == second);
        if !is_known {
            return Err(self.wrong(key, &format!("`{first}` or `{second}` for each layer")));
        }
        Ok(Some(kinds.into_iter().map(|kind| kind == second).collect()))
    }

    /// Describes a Mamba model.
    pub(super) fn mamba(&self, n_embd: usize) -> Result<SsmDescriptor, LoadError> {
        let n_heads = match self.opt_usize("intermediate_size")? {
            Some(width) => width,
            None => n_embd.saturating_mul(self.opt_usize("expand")?.unwrap_or(2)),
        };
        let dt_rank = match self.get("time_step_rank") {
            Some(Value::String(auto)) if auto == "auto" => n_embd.div_ceil(16),
            _ => self.count("time_step_rank")?,
        };
        Ok(SsmDescriptor {
            kind: SsmKind::Mamba {
                dt_rank,
                has_norms: false,
            },
            n_heads,
            head_dim: 1,
            n_groups: 1,
            n_state: self.count("state_size")?,
            n_taps: self.count("conv_kernel")?,
            conv_bias: self.presence_or_required("use_conv_bias")?,
            bias: self.presence("use_bias")?,
        })
    }

    /// Describes a Mamba 2 model.
    pub(super) fn mamba2(&self, keys: &Mamba2Keys, has_norm: bool) -> Result<SsmDescriptor, LoadError> {
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
        let n_heads = self.count(keys.n_heads)?;
        let head_dim = match self.get(keys.head_dim) {
            Some(Value::String(auto)) if auto == "auto" => {
                let width = self
                    .count("hidden_size")?
                    .saturating_mul(self.count("mamba_expand")?);
                width / n_heads.max(1)
            }
            _ => self.count(keys.head_dim)?,
        };
        Ok(SsmDescriptor {
            kind: SsmKind::Mamba2 { has_norm },
            n_heads,
            head_dim,
            n_groups: self.count(keys.n_groups)?,
            n_state: self.count(keys.n_state)?,
            n_taps: self.count(keys.n_taps)?,
            conv_bias: self.presence_or_required(keys.conv_bias)?,
            bias: self.presence(keys.bias)?,
        })
    }
}

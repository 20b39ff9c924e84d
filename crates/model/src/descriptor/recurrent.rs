//! The mixers that carry a state from token to token: [`DeltaNetDescriptor`], [`KimiDeltaDescriptor`],
//! [`SsmDescriptor`], [`ShortConvDescriptor`].
//!
//! Unlike attention, their memory does not grow with the sequence. Invariant: the sizes of a descriptor that
//! passed its `validate` are divisible as the operations need.

use tokenmill_backend::{KeyHeads, StateLayerShape};

use crate::{LoadError, error::check};

use super::{MAX_WIDTH, Presence, WIDTH};

/// A gated delta net, between a short convolution and a gated norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaNetDescriptor {
    /// Number of query and key heads.
    pub n_k_heads: usize,
    /// Number of value heads.
    pub n_v_heads: usize,
    /// Width of a query and key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// Number of rows that the convolution sees, including the newest.
    pub n_taps: usize,
    /// The mapping from value heads to key heads.
    pub key_heads: KeyHeads,
    /// The tensors of the decay and rate projections.
    pub gates: DeltaGates,
}

/// The tensors of the decay and rate projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaGates {
    /// `ssm_alpha` and `ssm_beta`.
    Apart,
    /// `ssm_ba`: for each key head the rates of its value heads, then their decays.
    ByKeyHead,
}

impl DeltaNetDescriptor {
    /// Returns the width of a token's values, all heads.
    pub fn v_width(&self) -> usize {
        self.n_v_heads * self.head_dim_v
    }

    /// Returns the width of a token's queries, keys and values: the channels of the convolution.
    pub fn qkv_width(&self) -> usize {
        2 * self.n_k_heads * self.head_dim_k + self.v_width()
    }

    pub(super) fn state_shape(&self) -> StateLayerShape {
        StateLayerShape {
            conv_len: self.qkv_width() * (self.n_taps - 1),
            matrix_len: self.v_width() * self.head_dim_k,
            matrix_row: self.head_dim_k,
        }
    }

    pub(super) fn validate(&self) -> Result<(), LoadError> {
        check_taps("convolution kernel", self.n_taps)?;
        check_width("delta net key heads", self.n_k_heads)?;
        check(
            "delta net value head count",
            self.n_v_heads,
            self.n_v_heads > 0 && self.n_v_heads.is_multiple_of(self.n_k_heads),
            "a multiple of its key heads",
        )?;
        for (what, head_dim) in [
            ("width of the delta net's key heads", self.head_dim_k),
            ("width of the delta net's value heads", self.head_dim_v),
        ] {
            check(
                what,
                head_dim,
                (1..=MAX_WIDTH / self.n_v_heads).contains(&head_dim),
                WIDTH,
            )?;
        }
        Ok(())
    }
}

/// A gated delta net with a decay per channel (KDA), between a short convolution and a gated norm. Keys and
/// values have the same heads. Decays and the output gate are computed from rows of the width of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KimiDeltaDescriptor {
    /// Number of heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of rows that the convolution sees, including the newest.
    pub n_taps: usize,
}

impl KimiDeltaDescriptor {
    /// Returns the width of a token's queries, which keys and values share.
    pub fn width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    pub(super) fn state_shape(&self) -> StateLayerShape {
        StateLayerShape {
            conv_len: 3 * self.width() * (self.n_taps - 1),
            matrix_len: self.width() * self.head_dim,
            matrix_row: self.head_dim,
        }
    }

    pub(super) fn validate(&self) -> Result<(), LoadError> {
        check_taps("convolution kernel", self.n_taps)?;
        check_width("delta net head count", self.n_heads)?;
        check(
            "delta net head width",
            self.head_dim,
            (1..=MAX_WIDTH / self.n_heads).contains(&self.head_dim),
            WIDTH,
        )
    }
}

/// A state space model, between a short convolution and a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsmDescriptor {
    /// Mamba or Mamba 2.
    pub kind: SsmKind,
    /// Number of heads; Mamba has one per channel.
    pub n_heads: usize,
    /// Width of a head; 1 for Mamba.
    pub head_dim: usize,
    /// Number of groups of heads that share the vectors B and C, which write and read the state.
    pub n_groups: usize,
    /// Width of the state.
    pub n_state: usize,
    /// Number of rows that the convolution sees, including the newest.
    pub n_taps: usize,
    /// Bias of the convolution.
    pub conv_bias: Presence,
    /// Biases of the projections into and out of the mixer.
    pub bias: Presence,
}

/// Differences between the two generations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SsmKind {
    /// B and C are computed from the convolved channels, the step sizes through a low-rank matrix.
    Mamba {
        /// Rank of that matrix.
        dt_rank: usize,
        /// Whether the step sizes, B and C go through RMS norms without weights.
        has_norms: bool,
    },
    /// B and C are convolved together with the channels.
    Mamba2 {
        /// Whether each group of the gated output goes through an RMS norm.
        has_norm: bool,
    },
}

impl SsmDescriptor {
    /// Returns the width of a token's channels.
    pub fn inner_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Returns the width of the convolution's input.
    pub fn conv_width(&self) -> usize {
        match self.kind {
            SsmKind::Mamba { .. } => self.inner_width(),
            SsmKind::Mamba2 { .. } => self.inner_width() + 2 * self.n_groups * self.n_state,
        }
    }

    pub(super) fn state_shape(&self) -> StateLayerShape {
        StateLayerShape {
            conv_len: self.conv_width() * (self.n_taps - 1),
            matrix_len: self.inner_width() * self.n_state,
            matrix_row: self.n_state,
        }
    }

    pub(super) fn validate(&self) -> Result<(), LoadError> {
        check_taps("convolution kernel", self.n_taps)?;
        check_width("state space head count", self.n_heads)?;
        check_width("state space width", self.n_heads.saturating_mul(self.head_dim))?;
        check(
            "state space group count",
            self.n_groups,
            self.n_groups > 0 && self.n_heads.is_multiple_of(self.n_groups),
            "a divisor of the heads",
        )?;
        let state = self.inner_width().saturating_mul(self.n_state);
        check(
            "state space state width",
            state,
            (1..=1 << 32).contains(&state),
            "at least 1",
        )?;
        check_width(
            "state space state width",
            self.n_groups.saturating_mul(self.n_state),
        )?;
        if let SsmKind::Mamba { dt_rank, .. } = self.kind {
            check_width("state space rank of step sizes", dt_rank)?;
            assert_eq!(
                (self.head_dim, self.n_groups),
                (1, 1),
                "the channels of Mamba are its heads"
            );
        }
        Ok(())
    }
}

/// A short convolution between two gates, as wide as the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConvDescriptor {
    /// Number of channels: the width of the stream.
    pub n_channels: usize,
    /// Number of rows that it sees, including the newest.
    pub n_taps: usize,
    /// Biases of the convolution and of the projections.
    pub bias: Presence,
}

impl ShortConvDescriptor {
    pub(super) fn state_shape(&self) -> StateLayerShape {
        StateLayerShape {
            conv_len: self.n_channels * (self.n_taps - 1),
            matrix_len: 0,
            matrix_row: 0,
        }
    }

    pub(super) fn validate(&self) -> Result<(), LoadError> {
        check_taps("short convolution's kernel", self.n_taps)?;
        check_width("convolution width", self.n_channels)
    }
}

fn check_taps(what: &'static str, n_taps: usize) -> Result<(), LoadError> {
    check(what, n_taps, (2..=16).contains(&n_taps), "between 2 and 16")
}

fn check_width(what: &'static str, width: usize) -> Result<(), LoadError> {
    check(what, width, (1..=MAX_WIDTH).contains(&width), WIDTH)
}

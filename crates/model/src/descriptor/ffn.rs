//! [`FfnDescriptor`]: how a layer works on each position by itself.
//!
//! Separate from the layer because each kind brings its own sizes and checks. Invariant: a kind's descriptor that passed
//! [`FfnDescriptor::validate`] can be built and run.

use tokenmill_backend::Activation;

use crate::{LoadError, error::check};

use super::{MAX_WIDTH, Presence, WIDTH};

/// The feed-forward network of one layer.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnDescriptor {
    /// The layer is a mixer alone.
    None,
    /// One network for all tokens.
    Dense(DenseDescriptor),
}

impl FfnDescriptor {
    /// The dense network, where it is one.
    pub fn dense(&self) -> Option<&DenseDescriptor> {
        match self {
            Self::Dense(dense) => Some(dense),
            Self::None => None,
        }
    }

    /// Whether the layer has none.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Width of the widest row that one of its matrices reads.
    pub fn widest_input(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Dense(dense) => dense.n_ff,
        }
    }

    /// Checks that all sizes fit together.
    pub(super) fn validate(&self) -> Result<(), LoadError> {
        match self {
            Self::None => Ok(()),
            Self::Dense(dense) => dense.validate(),
        }
    }
}

/// A feed-forward network that computes all of its width for every token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseDescriptor {
    /// Width inside.
    pub n_ff: usize,
    /// Its function.
    pub activation: Activation,
    /// Whether there is a gate: `down(f(gate(x)) * up(x))` instead of `down(f(up(x)))`.
    pub is_gated: bool,
    /// Biases of its matrices.
    pub bias: Presence,
}

impl DenseDescriptor {
    fn validate(&self) -> Result<(), LoadError> {
        check(
            "feed-forward length",
            self.n_ff,
            (1..=MAX_WIDTH).contains(&self.n_ff),
            WIDTH,
        )
    }
}

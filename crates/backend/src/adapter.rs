//! [`Adapter`]: low-rank changes of a network's weights (LoRA), as they come from a file.
//!
//! Separate from the network because adapters come and go while it stays. Invariant: an [`AdapterId`] is never used twice, so
//! what was computed with one adapter is never taken for what another computes.
//!
//! ```text
//! y = W x + strength * scale * B (A x)        A: [rank, n_in], B: [n_out, rank]
//! ```
//!
//! Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, equation 3.

use std::{fmt, num::NonZeroU32};

use tokenmill_gguf::TensorType;

use crate::BackendError;

/// Names an adapter for as long as an executor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(NonZeroU32);

impl AdapterId {
    /// The adapter of this number, counted from 1.
    pub fn new(number: NonZeroU32) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for AdapterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An adapter as it comes from a file: changes of some weights of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The changes, each of another weight.
    pub weights: Vec<AdapterWeight>,
}

/// The change of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterWeight {
    /// The weight's GGUF name.
    pub tensor: String,
    /// Multiplies the change: alpha over the rank, or what the file has in its place.
    pub scale: f32,
    /// Rows of `a`, columns of `b`; at least 1.
    pub rank: usize,
    /// Columns of `a`.
    pub n_in: usize,
    /// Rows of `b`.
    pub n_out: usize,
    /// `[rank, n_in]`.
    pub a: FloatMatrix,
    /// `[n_out, rank]`.
    pub b: FloatMatrix,
}

/// The numbers of a matrix, rows one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatMatrix {
    /// F32, F16 or BF16.
    pub ty: TensorType,
    /// The rows as a file stores them.
    pub bytes: Vec<u8>,
}

impl Adapter {
    /// Bytes of all matrices.
    pub fn n_bytes(&self) -> usize {
        (self.weights.iter())
            .map(|weight| weight.a.bytes.len() + weight.b.bytes.len())
            .sum()
    }

    /// The largest rank of its changes.
    pub fn max_rank(&self) -> usize {
        self.weights.iter().map(|weight| weight.rank).max().unwrap_or(0)
    }
}

/// Why an adapter cannot be used with a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// What computes has no operation for adapters.
    #[error("{device} computes no adapters; load all of the model on the CPU, or on one GPU, to use them")]
    Unsupported {
        /// The device.
        device: &'static str,
    },
    /// A weight that the network does not have, or that is none of a linear map's.
    #[error("the adapter changes `{tensor}`, which is no weight of this model that an adapter can change")]
    UnknownWeight {
        /// The weight.
        tensor: String,
    },
    /// A weight that two changes are of.
    #[error("the adapter changes `{tensor}` twice")]
    Twice {
        /// The weight.
        tensor: String,
    },
    /// A weight of another shape.
    #[error(
        "the adapter changes `{tensor}` as a matrix of {} by {}, but it is one of {} by {}",
        found[0], found[1], expected[0], expected[1]
    )]
    Shape {
        /// The weight.
        tensor: String,
        /// Its outputs and inputs.
        expected: [usize; 2],
        /// Those of the adapter.
        found: [usize; 2],
    },
    /// A scale that is no finite number once it is multiplied by the adapter's strength.
    #[error("the adapter's strength makes a change infinite; give it a smaller one")]
    Strength,
    /// An adapter that is not there.
    #[error("adapter {id} is not loaded")]
    NotLoaded {
        /// Its name.
        id: AdapterId,
    },
    /// The device refused.
    #[error("{reason}")]
    Device {
        /// What it said.
        reason: String,
    },
}

impl From<BackendError> for AdapterError {
    fn from(error: BackendError) -> Self {
        Self::Device {
            reason: error.to_string(),
        }
    }
}

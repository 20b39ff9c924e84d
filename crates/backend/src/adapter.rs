//! [`Adapter`]: low-rank changes of a network's weights (LoRA), as read from a file.
//!
//! Adapters are added and removed while the network stays. Invariant: an [`AdapterId`] is never reused, so
//! results of one adapter are never mistaken for another's.
//!
//! ```text
//! y = W x + strength * scale * B (A x)        A: [rank, n_in], B: [n_out, rank]
//! ```
//!
//! Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, equation 3.

use std::{fmt, num::NonZeroU32};

use tokenmill_gguf::TensorType;

use crate::BackendError;

/// Identifies an adapter for the lifetime of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(NonZeroU32);

impl AdapterId {
    /// Creates the id with this number, counted from 1.
    pub fn new(number: NonZeroU32) -> Self {
        Self(number)
    }

    /// Returns the id's number.
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for AdapterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An adapter as read from a file: changes of some weights of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The changes, at most one per weight.
    pub weights: Vec<AdapterWeight>,
}

/// The change of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterWeight {
    /// The weight's GGUF name.
    pub tensor: String,
    /// Factor of the change: alpha divided by the rank, or the file's own value.
    pub scale: f32,
    /// Number of rows of `a` and columns of `b`; at least 1.
    pub rank: usize,
    /// Number of columns of `a`.
    pub n_in: usize,
    /// Number of rows of `b`.
    pub n_out: usize,
    /// `[rank, n_in]`.
    pub a: FloatMatrix,
    /// `[n_out, rank]`.
    pub b: FloatMatrix,
}

/// The numbers of a matrix, row after row.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatMatrix {
    /// F32, F16 or BF16.
    pub ty: TensorType,
    /// The rows as a file stores them.
    pub bytes: Vec<u8>,
}

impl Adapter {
    /// Returns the size of all matrices, in bytes.
    pub fn n_bytes(&self) -> usize {
        (self.weights.iter())
            .map(|weight| weight.a.bytes.len() + weight.b.bytes.len())
            .sum()
    }

    /// Returns the largest rank of its changes.
    pub fn max_rank(&self) -> usize {
        self.weights.iter().map(|weight| weight.rank).max().unwrap_or(0)
    }
}

/// The reason why an adapter cannot be used with a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The device has no operation for adapters.
    #[error("{device} computes no adapters; load all of the model on the CPU, or on one GPU, to use them")]
    Unsupported {
        /// The device.
        device: &'static str,
    },
    /// The network does not have the weight, or the weight does not belong to a linear map.
    #[error("the adapter changes `{tensor}`, but this model has no such weight that an adapter can change")]
    UnknownWeight {
        /// The weight.
        tensor: String,
    },
    /// Two changes apply to the same weight.
    #[error("the adapter changes `{tensor}` twice")]
    Twice {
        /// The weight.
        tensor: String,
    },
    /// The weight has another shape.
    #[error(
        "the adapter changes `{tensor}` as a matrix of {} by {}, but it is one of {} by {}",
        found[0], found[1], expected[0], expected[1]
    )]
    Shape {
        /// The weight.
        tensor: String,
        /// Number of outputs and inputs of the weight.
        expected: [usize; 2],
        /// Number of outputs and inputs of the adapter.
        found: [usize; 2],
    },
    /// A scale is not finite after multiplication by the adapter's strength.
    #[error("the adapter's strength makes a change infinite; give it a smaller one")]
    Strength,
    /// The adapter is not loaded.
    #[error("adapter {id} is not loaded")]
    NotLoaded {
        /// Its id.
        id: AdapterId,
    },
    /// The device reported an error.
    #[error("{reason}")]
    Device {
        /// The device's message.
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

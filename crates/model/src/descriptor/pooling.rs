//! [`PoolingDescriptor`]: how a network reduces a sequence to one row.
//!
//! Layers know only tokens. Invariant: a descriptor that passed [`PoolingDescriptor::validate`] can be built
//! and run.

use tokenmill_backend::{Activation, Pooling};

use crate::{LoadError, error::check};

use super::{MAX_WIDTH, Presence, WIDTH};

/// How the final hidden states of a sequence become one row, and the computation on that row.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolingDescriptor {
    /// How the rows are combined.
    pub kind: Pooling,
    /// The computation on that row, in order.
    pub head: Vec<HeadLayer>,
    /// The meaning of the result.
    pub output: PooledOutput,
}

/// The meaning of a pooled row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PooledOutput {
    /// An embedding: texts of similar meaning have vectors of similar direction.
    Embedding,
    /// A ranking score: how well a document answers a query. There is one score per class; the first class
    /// stands for "yes".
    Rank,
}

/// A step of the computation on a pooled row.
#[derive(Clone, Debug, PartialEq)]
pub enum HeadLayer {
    /// A matrix.
    Linear {
        /// Stem of its tensor names.
        name: &'static str,
        /// Width of its output.
        n_out: usize,
        /// Its bias.
        bias: Presence,
    },
    /// A norm of the network's kind.
    Norm {
        /// Stem of its tensor names.
        name: &'static str,
    },
    /// An activation, applied to each value.
    Activation(Activation),
    /// The hyperbolic tangent, applied to each value.
    Tanh,
}

impl PoolingDescriptor {
    /// Returns a pooling without head, for embeddings.
    pub fn embedding(kind: Pooling) -> Self {
        Self {
            kind,
            head: Vec::new(),
            output: PooledOutput::Embedding,
        }
    }

    /// Returns the output widths of the head's matrices.
    fn widths(&self) -> impl Iterator<Item = usize> {
        self.head.iter().filter_map(|layer| match layer {
            HeadLayer::Linear { n_out, .. } => Some(*n_out),
            _ => None,
        })
    }

    /// Returns the width of the result if a token's row has `n_embd` values.
    pub fn output_width(&self, n_embd: usize) -> usize {
        self.widths().last().unwrap_or(n_embd)
    }

    /// Checks that all sizes are usable.
    pub(super) fn validate(&self) -> Result<(), LoadError> {
        self.widths().try_for_each(|width| {
            check(
                "width of the pooling head",
                width,
                (1..=MAX_WIDTH).contains(&width),
                WIDTH,
            )
        })
    }
}

//! [`PoolingDescriptor`]: how a network makes one row of a sequence.
//!
//! Separate from the layers, which know tokens only. Invariant: a descriptor that passed [`PoolingDescriptor::validate`]
//! can be built and run.

use tokenmill_backend::{Activation, Pooling};

use crate::{LoadError, error::check};

use super::{MAX_WIDTH, Presence, WIDTH};

/// How the final hidden states of a sequence become one row, and what is computed from it.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolingDescriptor {
    /// How they become one.
    pub kind: Pooling,
    /// What is computed from that row, in order.
    pub head: Vec<HeadLayer>,
    /// What the result is.
    pub output: PooledOutput,
}

/// What a pooled row says of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PooledOutput {
    /// Where it lies: texts of like meaning have vectors of like direction.
    Embedding,
    /// How well a document answers a query: a score for each of the classes, the first of which stands for "yes".
    Rank,
}

/// A step of what is computed from a pooled row.
#[derive(Clone, Debug, PartialEq)]
pub enum HeadLayer {
    /// A matrix.
    Linear {
        /// Stem of its tensors' names.
        name: &'static str,
        /// Width of its output.
        n_out: usize,
        /// Its bias.
        bias: Presence,
    },
    /// A norm of the network's kind.
    Norm {
        /// Stem of its tensors' names.
        name: &'static str,
    },
    /// A function of each value.
    Activation(Activation),
    /// The hyperbolic tangent of each value.
    Tanh,
}

impl PoolingDescriptor {
    /// A pooled row as it is, as an embedding.
    pub fn embedding(kind: Pooling) -> Self {
        Self {
            kind,
            head: Vec::new(),
            output: PooledOutput::Embedding,
        }
    }

    /// Widths of the results of the head's matrices.
    fn widths(&self) -> impl Iterator<Item = usize> {
        self.head.iter().filter_map(|layer| match layer {
            HeadLayer::Linear { n_out, .. } => Some(*n_out),
            _ => None,
        })
    }

    /// Width of the result, where a token's row has `n_embd` values.
    pub fn output_width(&self, n_embd: usize) -> usize {
        self.widths().last().unwrap_or(n_embd)
    }

    /// Width of the widest row on the way.
    pub(crate) fn widest_row(&self, n_embd: usize) -> usize {
        self.widths().fold(n_embd, usize::max)
    }

    /// Checks that all sizes can be had.
    pub(super) fn validate(&self) -> Result<(), LoadError> {
        // The pooled row itself may be a row of the stream, which nothing may change.
        let begins_in_place = matches!(
            self.head.first(),
            Some(HeadLayer::Activation(_) | HeadLayer::Tanh)
        );
        check(
            "first layer of the pooling head",
            "a function",
            !begins_in_place,
            "a matrix or a norm",
        )?;
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

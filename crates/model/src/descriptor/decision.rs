//! [`DecisionDescriptor`]: the layers that score the options of typed questions.

use crate::{LoadError, error::check};

/// Types of questions: choice, score and yes/no, in the order of the scores.
pub const N_QUESTION_TYPES: usize = 3;

/// The head of a network that answers typed questions. Its layers are the network's last; they read the trunk's rows after the output
/// norm, with an embedding of the question's type added, and have no positions. A scorer then gives each row a number.
///
/// The type is no input of a step, so the head computes [`N_QUESTION_TYPES`] numbers for each row, one per type.
///
/// Source: llama.cpp, `src/models/modern-bert.cpp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionDescriptor {
    /// Number of its layers.
    pub n_layers: usize,
}

impl DecisionDescriptor {
    /// Checks that layers are left for the trunk.
    pub(super) fn validate(self, n_layers: usize) -> Result<(), LoadError> {
        check(
            "layer count of the head that scores options",
            self.n_layers,
            (1..n_layers).contains(&self.n_layers),
            "at least 1, and less than the layer count",
        )
    }
}

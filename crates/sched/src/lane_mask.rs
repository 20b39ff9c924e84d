//! [`LaneMask`]: how far a constrained sequence's next mask is.
//!
//! Separate from the code that orders masks, because the core holds one for each sequence. Invariant: it holds the mask of
//! the next token or none.

use crate::constraint::{ConstraintFailure, ConstraintSource, TokenConstraint};

/// The mask of a constrained sequence.
pub(crate) enum LaneMask {
    /// Not begun.
    Waiting(ConstraintSource),
    /// A worker has it.
    Ordered,
    /// The mask of the next token.
    Ready(Box<dyn TokenConstraint>, Vec<u32>),
    /// It cannot be followed further.
    Failed(ConstraintFailure),
}

impl LaneMask {
    /// The mask of the next token.
    pub(crate) fn words(&self) -> Option<&[u32]> {
        match self {
            Self::Ready(_, words) => Some(words),
            _ => None,
        }
    }
}

//! Constraints on their way from text to the engine, which knows tokens only.
//!
//! Separate from the words because it is the one place that joins the two. Invariant: a constraint is compiled on the thread
//! of whoever asks, never on the engine's.

use tokenmill_sched::{ConstraintFailure, ConstraintSource, TokenConstraint};
use tokenmill_text::constraint::{CompiledConstraint, ConstraintError, ConstraintMatcher};

/// Begins `compiled` for each sample. `end_ids` are the tokens that may end one.
pub(crate) fn source(compiled: CompiledConstraint, end_ids: Vec<u32>) -> ConstraintSource {
    ConstraintSource::new(move || Box::new(Sample(compiled.matcher(&end_ids))))
}

struct Sample(ConstraintMatcher);

impl TokenConstraint for Sample {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        self.0.mask(words).map_err(failure)
    }

    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure> {
        self.0.commit(token).map_err(failure)
    }

    fn is_done(&self) -> bool {
        self.0.is_complete()
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.0.rollback(n_tokens).map_err(failure)
    }
}

fn failure(error: ConstraintError) -> ConstraintFailure {
    let reason = match error {
        ConstraintError::Step { reason } => reason,
        other => other.to_string(),
    };
    ConstraintFailure { reason }
}

//! [`Endless`]: a constraint whose masks a function makes, and that no token ends.
//!
//! Tests inside and outside of the crate use it; each takes the crate's items from the module above.

use super::{ConstraintFailure, ConstraintSource, TokenConstraint};

/// Makes each mask by a function of the number of tokens before it.
pub(crate) struct Endless<F> {
    n_tokens: u32,
    mask: F,
}

impl<F: FnMut(u32, &mut [u32]) -> Result<(), ConstraintFailure> + Send + 'static> Endless<F> {
    /// A source that begins one for each sample.
    pub(crate) fn source(mask: impl Fn() -> F + Send + Sync + 'static) -> ConstraintSource {
        ConstraintSource::new(move || {
            Box::new(Self {
                n_tokens: 0,
                mask: mask(),
            })
        })
    }
}

impl<F: FnMut(u32, &mut [u32]) -> Result<(), ConstraintFailure> + Send> TokenConstraint for Endless<F> {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        (self.mask)(self.n_tokens, words)
    }

    fn commit(&mut self, _token: u32) -> Result<(), ConstraintFailure> {
        self.n_tokens += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        false
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.n_tokens -= n_tokens as u32;
        Ok(())
    }
}

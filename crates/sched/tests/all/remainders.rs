//! [`Remainders`]: a constraint that counts its tokens, and allows or excludes ids by their number.
//!
//! Tests of several files use it. Invariant: each token comes once, in order, whatever was taken back before.

use tokenmill_sched::{ConstraintFailure, TokenConstraint};

/// Token `n` of a sample is congruent to `n`, or is not, to a modulus.
pub(crate) struct Remainders {
    n_tokens: u32,
    modulus: u32,
    is_allowed: bool,
    /// The text is done behind so many.
    end: Option<u32>,
}

impl Remainders {
    /// Allows ids that are congruent to the number of the token, or all others; done behind `end` tokens, if that is given.
    pub(crate) const fn new(modulus: u32, is_allowed: bool, end: Option<u32>) -> Self {
        Self {
            n_tokens: 0,
            modulus,
            is_allowed,
            end,
        }
    }
}

impl TokenConstraint for Remainders {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        words.fill(if self.is_allowed { 0 } else { u32::MAX });
        for id in (self.n_tokens % self.modulus..words.len() as u32 * 32).step_by(self.modulus as usize) {
            words[id as usize / 32] ^= 1 << (id % 32);
        }
        Ok(())
    }

    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure> {
        let is_congruent = token % self.modulus == self.n_tokens % self.modulus;
        assert_eq!(is_congruent, self.is_allowed, "each token comes once, in order");
        self.n_tokens += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.end == Some(self.n_tokens)
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.n_tokens -= n_tokens as u32;
        Ok(())
    }
}

//! [`TokenConstraint`]: what a sample may be made of, as far as the engine knows it.
//!
//! Separate because the engine knows tokens and no text: whoever compiles schemas or grammars implements this. Invariant:
//! what a constraint allows depends on the tokens of its own sample alone.

use std::fmt;

use crate::sync::Arc;

/// Which tokens a sample may continue with, token by token.
///
/// The engine calls it on a thread that computes masks, apart from its own.
pub trait TokenConstraint: Send {
    /// Writes the tokens that may come next: bit `id % 32` of word `id / 32`. There are words for the whole vocabulary, and
    /// what they held before is of no interest.
    ///
    /// # Errors
    /// Why it cannot be followed further; the sample then fails.
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure>;

    /// Takes in the token that was sampled. One that ends the sample does not come.
    ///
    /// # Errors
    /// Why it cannot be followed further; the sample then fails.
    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure>;

    /// Whether nothing may follow what was committed. The sample then ends as if a stop token had come.
    fn is_done(&self) -> bool;

    /// Takes back the newest `n_tokens` tokens that were committed: a draft proposed them.
    ///
    /// # Errors
    /// Why it cannot; the constraint is then begun again, and takes the tokens of the sample once more.
    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure>;

    /// Whether the text has left what it was bound to, so that anything may follow. No guess is followed over the place where it leaves.
    fn has_left(&self) -> bool {
        false
    }

    /// The token that comes next where `words`, the mask of it, leaves no choice of text. It is a guess: others in the mask may spell
    /// the same text.
    fn forced(&self, words: &[u32]) -> Option<u32> {
        let idx = words.iter().position(|&word| word != 0)?;
        let is_only = words[idx].is_power_of_two() && words[idx + 1..].iter().all(|&word| word == 0);
        is_only.then(|| idx as u32 * 32 + words[idx].trailing_zeros())
    }
}

/// Why a constraint could not be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ConstraintFailure {
    /// What happened.
    pub reason: String,
}

/// Begins the constraint of each sample of a request.
#[derive(Clone)]
pub struct ConstraintSource {
    begin: Arc<dyn Fn() -> Box<dyn TokenConstraint> + Send + Sync>,
    name: Option<Arc<[u8]>>,
}

impl ConstraintSource {
    /// A source that calls `begin` for each sample, on a thread that computes masks.
    pub fn new(begin: impl Fn() -> Box<dyn TokenConstraint> + Send + Sync + 'static) -> Self {
        Self {
            begin: Arc::new(begin),
            name: None,
        }
    }

    /// Names it. Two sources of one name must begin constraints that allow the same: then a request may guess its answer by that of
    /// another, as far as all else is equal.
    #[must_use]
    pub fn named(self, name: impl Into<Vec<u8>>) -> Self {
        Self {
            name: Some(name.into().into()),
            ..self
        }
    }

    pub(crate) fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    pub(crate) fn begin(&self) -> Box<dyn TokenConstraint> {
        (self.begin)()
    }
}

impl PartialEq for ConstraintSource {
    /// Whether it is the same source.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.begin, &other.begin)
    }
}

impl fmt::Debug for ConstraintSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintSource").finish_non_exhaustive()
    }
}

//! [`TokenConstraint`]: the engine's view of a constraint on a sample.
//!
//! The engine knows tokens and no text; compilers of schemas or grammars implement this trait. Invariant: the
//! tokens that a constraint allows depend only on the tokens of its own sample.

use std::fmt;

use crate::sync::Arc;

/// The tokens with which a sample may continue, token by token.
///
/// The engine calls it on a mask worker's thread, not on its own.
pub trait TokenConstraint: Send {
    /// Writes the tokens that may come next: bit `id % 32` of word `id / 32`. `words` covers the whole
    /// vocabulary; its previous contents are ignored.
    ///
    /// # Errors
    /// The reason why the constraint cannot continue; the sample then fails.
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure>;

    /// Adds a sampled token. Tokens that end the sample are not passed.
    ///
    /// # Errors
    /// The reason why the constraint cannot continue; the sample then fails.
    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure>;

    /// Returns whether nothing may follow the committed tokens. The sample then ends as after a stop token.
    fn is_done(&self) -> bool;

    /// Removes the newest `n_tokens` committed tokens, which came from a draft.
    ///
    /// # Errors
    /// The reason why it cannot. The constraint is then restarted and receives the sample's tokens again.
    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure>;

    /// Returns whether the text has left the constrained part, so that anything may follow. No draft
    /// continues past that point.
    fn has_left(&self) -> bool {
        false
    }

    /// Returns the next token if `words`, the mask, leaves no choice of text. It is a draft: other tokens in
    /// the mask may spell the same text.
    fn forced(&self, words: &[u32]) -> Option<u32> {
        let idx = words.iter().position(|&word| word != 0)?;
        let is_only = words[idx].is_power_of_two() && words[idx + 1..].iter().all(|&word| word == 0);
        is_only.then(|| idx as u32 * 32 + words[idx].trailing_zeros())
    }
}

/// The reason why a constraint could not continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ConstraintFailure {
    /// A description of the failure.
    pub reason: String,
}

/// Creates the constraint of each sample of a request.
#[derive(Clone)]
pub struct ConstraintSource {
    begin: Arc<dyn Fn() -> Box<dyn TokenConstraint> + Send + Sync>,
    name: Option<Arc<[u8]>>,
}

impl ConstraintSource {
    /// Creates a source that calls `begin` for each sample, on a mask worker's thread.
    pub fn new(begin: impl Fn() -> Box<dyn TokenConstraint> + Send + Sync + 'static) -> Self {
        Self {
            begin: Arc::new(begin),
            name: None,
        }
    }

    /// Names the source. Two sources with the same name must create equivalent constraints. A request may
    /// then draft its answer from another's if everything else is equal.
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
    /// Compares by identity.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.begin, &other.begin)
    }
}

impl fmt::Debug for ConstraintSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintSource").finish_non_exhaustive()
    }
}

//! [`HiddenReader`]: how a test's executor treats the hidden states that come with its tokens.
//!
//! Most users of an executor have no hidden states. Invariant: a state belongs to the token before, or is
//! zeros.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokenmill_backend::ForwardBatch;

/// The treatment of hidden states by an executor.
#[derive(Clone, Debug, Default)]
pub enum HiddenReader {
    /// It takes no states.
    #[default]
    Nothing,
    /// It takes states without looking at them.
    Any,
    /// It checks that each state equals the state that the executor itself returns after the token before, or
    /// is zeros. It counts the equal states, and the zeros that do not precede the first token.
    Checked(Arc<[AtomicUsize; 2]>),
}

impl HiddenReader {
    /// Checks the state before a token, of `width` numbers; `expected` returns the state after a position.
    ///
    /// # Panics
    /// If the states differ.
    pub(crate) fn check(
        &self,
        batch: &ForwardBatch,
        token_idx: usize,
        width: usize,
        expected: impl FnOnce(usize) -> Vec<f32>,
    ) {
        let Self::Checked(counts) = self else {
            return;
        };
        let found = &batch.hidden_inputs[token_idx * width..][..width];
        let position = batch.positions[token_idx] as usize;
        if found.iter().all(|&x| x == 0.0) {
            counts[1].fetch_add(usize::from(position > 0), Ordering::Relaxed);
            return;
        }
        let before = position
            .checked_sub(1)
            .expect("nothing is before the first token");
        assert_eq!(
            found,
            expected(before),
            "the hidden state before position {position} is another token's"
        );
        counts[0].fetch_add(1, Ordering::Relaxed);
    }
}

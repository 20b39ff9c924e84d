//! [`ForcedOutput`]: a predetermined output of a sample.
//!
//! Only measurements use it: it makes a model with random weights repeat its prompt, or not. Invariant: every
//! row is computed and sampled as without it, and only then is its token replaced.

use std::sync::Arc;

/// The predetermined tokens of a sample.
#[derive(Clone, Debug)]
pub(crate) struct ForcedOutput {
    tokens: Arc<[u32]>,
    /// Number of tokens in its sequence before the first of them.
    n_before: usize,
    /// Number of tokens of its sequence dropped since.
    n_dropped: usize,
}

impl ForcedOutput {
    /// Sets `tokens` as the output after the first `n_before` tokens of a sequence.
    pub(crate) fn new(tokens: Arc<[u32]>, n_before: usize) -> Self {
        Self {
            tokens,
            n_before,
            n_dropped: 0,
        }
    }

    /// Returns the token after a number of inputs; `None` after the last.
    pub(crate) fn token_after(&self, n_inputs: usize) -> Option<u32> {
        let at = (n_inputs + self.n_dropped).checked_sub(self.n_before)?;
        self.tokens.get(at).copied()
    }

    /// Adjusts positions after `n_dropped` earlier tokens were dropped.
    pub(crate) fn shift(&mut self, n_dropped: usize) {
        self.n_dropped += n_dropped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_in_order_whatever_is_dropped() {
        let mut forced = ForcedOutput::new(Arc::from([7, 8, 9]), 4);
        let said = |forced: &ForcedOutput| [3, 4, 6, 7].map(|n_inputs| forced.token_after(n_inputs));
        assert_eq!(said(&forced), [None, Some(7), Some(9), None]);
        forced.shift(2);
        assert_eq!(said(&forced), [Some(8), Some(9), None, None]);
    }
}

//! [`Following`]: what a sample says, where that is given beforehand.
//!
//! Separate because only measurements have it: with it a model of random weights says what repeats its prompt, or what does not.
//! Invariant: every row is computed and sampled as without it; only then its token gives way.

use std::sync::Arc;

/// The tokens of a sample, as they were given.
#[derive(Clone, Debug)]
pub(crate) struct Following {
    tokens: Arc<[u32]>,
    /// Tokens of its sequence before the first of them.
    n_before: usize,
    /// Tokens of its sequence that were dropped since.
    n_dropped: usize,
}

impl Following {
    /// Says `tokens` behind the first `n_before` of a sequence.
    pub(crate) fn new(tokens: Arc<[u32]>, n_before: usize) -> Self {
        Self {
            tokens,
            n_before,
            n_dropped: 0,
        }
    }

    /// The token that comes after so many inputs; `None` behind the last.
    pub(crate) fn token_after(&self, n_inputs: usize) -> Option<u32> {
        let at = (n_inputs + self.n_dropped).checked_sub(self.n_before)?;
        self.tokens.get(at).copied()
    }

    /// Continues at the same token where `n_dropped` before it are dropped.
    pub(crate) fn shift(&mut self, n_dropped: usize) {
        self.n_dropped += n_dropped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_in_order_whatever_is_dropped() {
        let mut following = Following::new(Arc::from([7, 8, 9]), 4);
        let said = |following: &Following| [3, 4, 6, 7].map(|n_inputs| following.token_after(n_inputs));
        assert_eq!(said(&following), [None, Some(7), Some(9), None]);
        following.shift(2);
        assert_eq!(said(&following), [Some(8), Some(9), None, None]);
    }
}

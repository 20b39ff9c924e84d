//! [`ContextShift`]: how a sequence continues when its context is full.
//!
//! Callers cut prompts by the same rule as the scheduler. The remaining tokens are computed again as a
//! prompt, so each token sees exactly what it would see in a new request; keys are never moved to other
//! positions. Invariant: the same number of tokens is dropped each time, so a cut prompt finds pages in the
//! prefix cache that an earlier cut left there.

use std::ops::Range;

/// Drops the oldest tokens except the beginning when a context is full, and continues the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextShift {
    /// Number of tokens at the beginning to keep: at most the prompt, and at most half of the context.
    pub keep: usize,
}

/// Minimum context to shift; in a shorter one, sequences end.
const MIN_CONTEXT: usize = 4;

/// The rule for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shift {
    /// Number of tokens at the beginning to keep.
    keep: usize,
    /// Number of tokens at which the context is full.
    pub(crate) n_ctx: usize,
}

impl ContextShift {
    /// Returns the rule for a prompt of `n_prompt` tokens in a context of `n_ctx`; `None` if the context is
    /// too short.
    pub(crate) fn rule(self, n_prompt: usize, n_ctx: usize) -> Option<Shift> {
        (n_ctx >= MIN_CONTEXT).then(|| Shift {
            keep: self.keep.min(n_prompt).min(n_ctx / 2),
            n_ctx,
        })
    }

    /// Returns the maximum number of tokens that can be kept in a context of `n_ctx`.
    pub fn max_keep(n_ctx: usize) -> usize {
        n_ctx / 2
    }

    /// Cuts a prompt, by the rule for a full context, until it is shorter than `n_ctx`. Returns the number of
    /// dropped tokens.
    pub fn cut(self, tokens: &mut Vec<u32>, n_ctx: usize) -> usize {
        tokens.drain(self.dropped(tokens.len(), n_ctx)).len()
    }

    /// Returns the tokens that [`Self::cut`] would drop from a prompt of `n_prompt` tokens; empty if it is
    /// shorter than `n_ctx`.
    pub fn dropped(self, n_prompt: usize, n_ctx: usize) -> Range<usize> {
        (self.rule(n_prompt, n_ctx)).map_or(0..0, |shift| shift.dropped(n_prompt))
    }
}

impl Shift {
    /// Returns the number of tokens dropped at a time: half of those not kept.
    fn unit(self) -> usize {
        (self.n_ctx - self.keep) / 2
    }

    /// Returns the tokens to drop from `n_tokens`.
    pub(crate) fn dropped(self, n_tokens: usize) -> Range<usize> {
        let n_over = (n_tokens + 1).saturating_sub(self.n_ctx);
        self.keep..self.keep + n_over.next_multiple_of(self.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(keep: usize, n_tokens: u32, n_ctx: usize) -> (usize, Vec<u32>) {
        let mut tokens = (0..n_tokens).collect();
        let n_dropped = ContextShift { keep }.cut(&mut tokens, n_ctx);
        (n_dropped, tokens)
    }

    #[test]
    fn half_of_what_is_not_kept_is_dropped_behind_the_beginning() {
        assert_eq!(cut(2, 10, 10), (4, vec![0, 1, 6, 7, 8, 9]));
        assert_eq!(cut(2, 9, 10), (0, (0..9).collect()));
        assert_eq!(cut(0, 10, 10), (5, vec![5, 6, 7, 8, 9]));
        // At most half of the context is kept.
        assert_eq!(cut(usize::MAX, 10, 10), (2, vec![0, 1, 2, 3, 4, 7, 8, 9]));
    }

    #[test]
    fn longer_prompts_are_cut_at_the_same_places() {
        // 4 at a time: the remaining text starts at the same token until the next 4 are dropped.
        for (n_tokens, first_left) in [(10, 6), (13, 6), (14, 10), (17, 10), (18, 14)] {
            let (n_dropped, tokens) = cut(2, n_tokens, 10);
            assert_eq!(tokens[..3], [0, 1, first_left], "{n_tokens}");
            assert_eq!(n_dropped + tokens.len(), n_tokens as usize);
            assert!(tokens.len() < 10);
        }
    }

    #[test]
    fn a_context_of_a_few_tokens_is_not_shifted() {
        assert_eq!(cut(0, 3, 3), (0, vec![0, 1, 2]));
        assert_eq!(cut(9, 4, 4), (1, vec![0, 1, 3]));
    }
}

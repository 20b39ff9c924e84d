//! [`PromptBudget`]: the memory of a request's prompts and of the rows that their answers are read from.
//!
//! Apart from the bounds of questions, because tokens and marks are known only once a prompt is written. Invariant: a request that passes
//! holds at most [`MAX_TOKENS`] tokens and [`MAX_ROW_BYTES`] of rows at a time.

use std::collections::VecDeque;

use crate::decide_error::DecideError;

/// Most tokens of all prompts of a request, each of which has the state.
const MAX_TOKENS: usize = 4 << 20;

/// Most bytes of the rows of prompts that are open at a time.
const MAX_ROW_BYTES: usize = 256 << 20;

/// Prompts of a request in the engine at a time. The rows of each are held until they are read.
pub(super) const MAX_OPEN: usize = 64;

/// The prompts of a request so far.
#[derive(Debug, Default)]
pub(super) struct PromptBudget {
    n_prompts: usize,
    n_tokens: usize,
    /// Bytes of the rows of the last prompts, which can be open together, and their sum.
    open: VecDeque<usize>,
    open_bytes: usize,
}

impl PromptBudget {
    /// Counts a prompt with the bytes of its rows.
    ///
    /// # Errors
    /// [`DecideError::TokenCount`] and [`DecideError::RowsTooLarge`].
    pub(super) fn add(&mut self, n_tokens: usize, row_bytes: usize) -> Result<(), DecideError> {
        self.n_prompts += 1;
        self.n_tokens = self.n_tokens.saturating_add(n_tokens);
        if self.n_tokens > MAX_TOKENS {
            return Err(DecideError::TokenCount {
                n_prompts: self.n_prompts,
                found: self.n_tokens,
                maximum: MAX_TOKENS,
            });
        }
        if self.open.len() == MAX_OPEN {
            self.open_bytes -= self.open.pop_front().unwrap_or(0);
        }
        self.open.push_back(row_bytes);
        self.open_bytes += row_bytes;
        if self.open_bytes > MAX_ROW_BYTES {
            return Err(DecideError::RowsTooLarge {
                n_prompts: self.open.len(),
                found_bytes: self.open_bytes,
                maximum_bytes: MAX_ROW_BYTES,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_all_prompts_are_bounded() {
        let mut budget = PromptBudget::default();
        for _ in 0..4 {
            assert_eq!(budget.add(MAX_TOKENS / 4, 4), Ok(()));
        }
        let refused = DecideError::TokenCount {
            n_prompts: 5,
            found: MAX_TOKENS + 1,
            maximum: MAX_TOKENS,
        };
        assert_eq!(budget.add(1, 4), Err(refused));
    }

    #[test]
    fn rows_are_bounded_of_prompts_that_are_open_together() {
        let each = MAX_ROW_BYTES / MAX_OPEN;
        let mut budget = PromptBudget::default();
        // Rows of earlier prompts were read.
        for _ in 0..3 * MAX_OPEN {
            assert_eq!(budget.add(1, each), Ok(()));
        }
        let refused = DecideError::RowsTooLarge {
            n_prompts: MAX_OPEN,
            found_bytes: MAX_ROW_BYTES + 1,
            maximum_bytes: MAX_ROW_BYTES,
        };
        assert_eq!(budget.add(1, each + 1), Err(refused));
        let one = PromptBudget::default().add(1, MAX_ROW_BYTES + 1);
        assert!(
            matches!(one, Err(DecideError::RowsTooLarge { n_prompts: 1, .. })),
            "{one:?}"
        );
    }
}

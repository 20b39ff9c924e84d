//! [`Places`]: the words of a step whose tokens are rotated by positions other than their own, or see later tokens.
//!
//! Only steps with images have them. The attention kernels for single tokens then treat each token as a sequence: its end says how far the
//! token sees, and a window still begins at the token's own position. Invariant: the number of words depends only on the step's shape and
//! on [`Places`], which is part of a captured step's key.

use tokenmill_backend::{BackendError, ForwardBatch, Phase, StepShape};

use super::step::StepInputs;

/// Selects the positions by which rope turns a step's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Turning {
    /// The tokens' own positions.
    #[default]
    Own,
    /// One for each token, the same for time, row and column, as for text after an image.
    Single,
    /// Time, row and column of each token.
    Axes,
}

/// Describes the positions by which a step's tokens turn, and whether they see later tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Places {
    pub(super) turning: Turning,
    /// Whether a token sees a later one.
    sees_ahead: bool,
}

/// Holds the positions by which rope turns, on the device.
pub(super) enum TurningPositions<'a> {
    /// One for each token, `[T]`.
    Single(crate::View<'a, u32>),
    /// Time, row and column of each, `[T, 3]`.
    Axes(crate::View<'a, u32>),
}

impl Places {
    /// Describes the tokens of a batch.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if the batch has windows per token, which only image encoders have.
    pub(super) fn of(batch: &ForwardBatch) -> Result<Self, BackendError> {
        if !batch.window_seen.is_empty() {
            return Err(BackendError::Unsupported {
                feature: "windows that a step names".to_owned(),
                device: <super::CudaBackend as tokenmill_backend::Backend>::NAME,
            });
        }
        let turns = batch.rope_positions.iter();
        let is_own = (turns.clone().zip(&batch.positions)).all(|(turn, &own)| *turn == [own; 3]);
        let is_single = turns.clone().all(|turn| *turn == [turn[0]; 3]);
        Ok(Self {
            turning: match (is_own, is_single) {
                (true, _) => Turning::Own,
                (false, true) => Turning::Single,
                (false, false) => Turning::Axes,
            },
            sees_ahead: !batch.last_seen.is_empty() && batch.last_seen != batch.positions,
        })
    }

    fn n_turning(self, n_tokens: usize) -> usize {
        n_tokens
            * match self.turning {
                Turning::Own => 0,
                Turning::Single => 1,
                Turning::Axes => 3,
            }
    }

    /// Counts the words of a step with these numbers of tokens and groups of pages.
    pub(super) fn n_words(self, n_tokens: usize, n_groups: usize) -> usize {
        let seen = if self.sees_ahead {
            (2 + n_groups) * n_tokens + 1
        } else {
            0
        };
        self.n_turning(n_tokens) + seen
    }

    /// Returns the most words that a step with these numbers of tokens and groups of pages may have.
    pub(super) fn max_words(n_tokens: usize, n_groups: usize) -> usize {
        let most = Self {
            turning: Turning::Axes,
            sees_ahead: true,
        };
        most.n_words(n_tokens, n_groups)
    }

    /// Writes the words of a batch that is padded to `n_tokens`. `page_starts` gives the start of each group's page table by sequence.
    pub(super) fn write(
        self,
        batch: &ForwardBatch,
        n_tokens: usize,
        page_starts: &[impl Fn(usize) -> u32],
        words: &mut [u32],
    ) {
        let (turning, seen) = words.split_at_mut(self.n_turning(n_tokens));
        match self.turning {
            Turning::Own => {}
            Turning::Single => {
                let turns = batch.rope_positions.iter().map(|turn| turn[0]);
                let padded = turns.chain(std::iter::repeat(super::step::NOWHERE));
                turning
                    .iter_mut()
                    .zip(padded)
                    .for_each(|(word, turn)| *word = turn);
            }
            Turning::Axes => {
                let turns = batch.rope_positions.as_flattened();
                turning[..turns.len()].copy_from_slice(turns);
                turning[turns.len()..].fill(super::step::NOWHERE);
            }
        }
        if !self.sees_ahead {
            return;
        }
        // Such a step is not padded: it has more tokens than sequences, and does not sample all of them.
        let (seq_of, seen) = seen.split_at_mut(n_tokens);
        let (ends, mut starts) = seen.split_at_mut(n_tokens + 1);
        for (token_idx, word) in seq_of.iter_mut().enumerate() {
            *word = token_idx as u32;
        }
        ends[0] = 0;
        for (token_idx, last) in batch.last_seen.iter().enumerate() {
            // The sum may wrap, since kernels use only the difference of two adjacent sums.
            ends[token_idx + 1] = ends[token_idx].wrapping_add(last + 1);
        }
        for start_of in page_starts {
            let (of_group, rest) = starts.split_at_mut(n_tokens);
            for seq_idx in 0..batch.n_seqs() {
                of_group[batch.tokens_of(seq_idx)].fill(start_of(seq_idx));
            }
            starts = rest;
        }
    }

    /// Returns the arguments of attention over the pages of a group if a token sees later ones; `None` in other steps. [`Self::write`] wrote the
    /// `words`, and `step` has the arguments for any step.
    pub(super) fn attention<'a>(
        self,
        words: crate::View<'a, u32>,
        group_idx: usize,
        step: crate::AttentionStep<'a>,
    ) -> Result<Option<crate::AttentionStep<'a>>, BackendError> {
        if !self.sees_ahead {
            return Ok(None);
        }
        let n_tokens = step.positions.len();
        let seq_of = self.n_turning(n_tokens);
        let ends = seq_of + n_tokens;
        let starts = ends + n_tokens + 1 + group_idx * n_tokens;
        Ok(Some(crate::AttentionStep {
            seq_of: words.range(seq_of..ends)?,
            page_starts: words.range(starts..starts + n_tokens)?,
            runs: Some(crate::TokenRuns {
                seq_starts: words.range(ends..ends + n_tokens + 1)?,
                longest: 1,
                has_single: true,
                n_leading_single: n_tokens,
            }),
            shared: None,
            ..step
        }))
    }

    /// Returns the positions by which rope turns, from the words that [`Self::write`] wrote; `None` if they are the tokens' own.
    pub(super) fn turning(
        self,
        words: crate::View<'_, u32>,
        n_tokens: usize,
    ) -> Result<Option<TurningPositions<'_>>, BackendError> {
        let words = words.range(0..self.n_turning(n_tokens))?;
        Ok(match self.turning {
            Turning::Own => None,
            Turning::Single => Some(TurningPositions::Single(words)),
            Turning::Axes => Some(TurningPositions::Axes(words)),
        })
    }
}

impl StepInputs {
    /// Returns whether steps of this shape, with the current places, come often enough to be captured. Prefill steps have too many shapes,
    /// and their kernels run long enough to hide the launches. The same holds for steps that verify drafts of several recurrent sequences,
    /// which are not padded. Rows in place of tokens are copied from an address that differs from step to step.
    pub(super) fn is_recurring(&self, shape: &StepShape) -> bool {
        if self.has_input_rows {
            return false;
        }
        match shape.phase {
            Phase::Mixed => false,
            Phase::Verify => self.limits().n_states == 0 || shape.n_seqs == 1,
            Phase::Decode => shape.n_tokens > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::TokenSource;

    use super::*;

    fn batch() -> ForwardBatch {
        let mut batch = ForwardBatch::default();
        batch.push_sequence((0..2).map(TokenSource::Id), 3, &[5]);
        batch.push_sequence((0..4).map(TokenSource::Id), 0, &[7]);
        batch
    }

    #[test]
    fn text_steps_write_no_place_words() {
        let mut batch = batch();
        assert_eq!(Places::of(&batch).unwrap(), Places::default());
        batch.turn_by(|position| [position; 3]);
        batch.see_each_other(1..2);
        assert_eq!(Places::of(&batch).unwrap(), Places::default());
        assert_eq!(Places::default().n_words(6, 2), 0);
    }

    #[test]
    fn each_token_is_a_sequence_that_ends_where_it_sees() {
        let mut batch = batch();
        batch.see_each_other(1..3);
        batch.turn_by(|position| [position, 0, 9]);
        let places = Places::of(&batch).unwrap();
        assert_eq!(places.turning, Turning::Axes);
        let mut words = vec![99; places.n_words(6, 2)];
        let starts = [
            |seq_idx: usize| seq_idx as u32,
            |seq_idx: usize| 2 + seq_idx as u32,
        ];
        places.write(&batch, 6, &starts, &mut words);
        let (turning, seen) = words.split_at(18);
        assert_eq!(turning[6..15], [0, 0, 9, 1, 0, 9, 2, 0, 9]);
        assert_eq!(seen[..6], [0, 1, 2, 3, 4, 5]);
        let lengths: Vec<u32> = seen[6..13].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(lengths, [4, 5, 1, 3, 3, 4]);
        assert_eq!(seen[13..], [0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3]);
        assert_eq!(words.len(), Places::max_words(6, 2));
    }

    #[test]
    fn equal_axes_take_one_word_per_token() {
        let mut batch = batch();
        batch.turn_by(|position| [position + 4; 3]);
        let places = Places::of(&batch).unwrap();
        assert_eq!(places.turning, Turning::Single);
        let mut words = vec![99; places.n_words(8, 1)];
        places.write(&batch, 8, &[|_: usize| 0], &mut words);
        assert_eq!(words[2..], [4, 5, 6, 7, u32::MAX, u32::MAX]);
    }
}

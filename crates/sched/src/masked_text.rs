//! [`MaskedText`]: the text of a constrained sample, its next mask, and the masks behind tokens that are guessed.
//!
//! Separate from the threads that compute masks, because it decides which guesses a constraint allows. Invariant: what was guessed is
//! taken back before a mask is handed over, so that a text is where its sampled tokens left it; where a constraint cannot go back, it
//! begins again and takes them once more.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crate::constraint::{ConstraintFailure, ConstraintSource, TokenConstraint};

/// A constrained sample as far as its tokens are known.
pub(crate) struct MaskedText {
    constraint: Box<dyn TokenConstraint>,
    source: ConstraintSource,
    /// What it took in.
    tokens: Vec<u32>,
}

/// How far masks are computed ahead of what is sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookAhead {
    /// What may follow, to the best of a look-up.
    pub(crate) guess: Vec<u32>,
    /// Tokens behind it that are added where the constraint leaves no choice of text.
    pub(crate) n_forced: usize,
    /// How long those may take.
    pub(crate) patience: Duration,
    /// Whether these have masks too. Else the step that they would be part of has begun, and they are for the next one.
    pub(crate) is_for_this_step: bool,
}

/// What was seen ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Tokens that the constraint allows one after the other: of the guess, and those that it forces.
    pub(crate) tokens: Vec<u32>,
    /// Those among them that came from the guess.
    pub(crate) n_guessed: usize,
}

impl MaskedText {
    pub(crate) fn begin(source: ConstraintSource) -> Self {
        Self {
            constraint: source.begin(),
            source,
            tokens: Vec::new(),
        }
    }

    /// Takes in what was sampled.
    pub(crate) fn commit(&mut self, tokens: &[u32]) -> Result<(), ConstraintFailure> {
        for &token in tokens {
            self.constraint.commit(token)?;
            self.tokens.push(token);
        }
        Ok(())
    }

    /// Whether nothing may follow.
    pub(crate) fn is_done(&self) -> bool {
        self.constraint.is_done()
    }

    /// Writes the next mask, of `n_words` words.
    pub(crate) fn mask(&mut self, n_words: usize, words: &mut Vec<u32>) -> Result<(), ConstraintFailure> {
        words.clear();
        words.resize(n_words, 0);
        self.constraint.mask(words)
    }

    /// Appends the masks behind guesses to the next mask, one for each token that the constraint allows and that does not end the text.
    pub(crate) fn look_ahead(
        &mut self,
        n_words: usize,
        ahead: &LookAhead,
        words: &mut Vec<u32>,
    ) -> Result<Seen, ConstraintFailure> {
        if ahead.guess.is_empty() && ahead.n_forced == 0 {
            return Ok(Seen::default());
        }
        let mut seen = Seen::default();
        let mut n_taken = 0;
        let looked = catch_unwind(AssertUnwindSafe(|| {
            let looked = self.look(n_words, ahead, words, &mut seen, &mut n_taken);
            looked.and_then(|()| self.constraint.rollback(n_taken)).is_ok()
        }));
        words.truncate((1 + seen.tokens.len()) * n_words);
        if !ahead.is_for_this_step {
            words.truncate((1 + seen.n_guessed) * n_words);
        }
        if !matches!(looked, Ok(true)) {
            self.constraint = self.source.begin();
            for &token in &self.tokens {
                self.constraint.commit(token)?;
            }
        }
        Ok(seen)
    }

    /// Takes guesses as long as there is a mask behind them. `n_taken` counts the tokens that the constraint took.
    ///
    /// # Errors
    /// Why a constraint failed. Where that left it is unknown.
    fn look(
        &mut self,
        n_words: usize,
        ahead: &LookAhead,
        words: &mut Vec<u32>,
        seen: &mut Seen,
        n_taken: &mut usize,
    ) -> Result<(), ConstraintFailure> {
        let had_left = self.constraint.has_left();
        let mut go_on = |constraint: &mut Box<dyn TokenConstraint>, token: u32, words: &mut Vec<u32>| {
            constraint.commit(token)?;
            *n_taken += 1;
            if constraint.is_done() {
                return Ok(false);
            }
            let start = words.len();
            words.resize(start + n_words, 0);
            constraint.mask(&mut words[start..])?;
            // Where a sampled text leaves is for its own mask to say: one that begins again would not know it.
            Ok(!constraint.is_done() && constraint.has_left() == had_left)
        };
        for &token in &ahead.guess {
            let mask = &words[words.len() - n_words..];
            if !allows(mask, token) {
                break;
            }
            if !go_on(&mut self.constraint, token, words)? {
                return Ok(());
            }
            seen.tokens.push(token);
            seen.n_guessed += 1;
        }
        let began = Instant::now();
        for _ in 0..ahead.n_forced {
            let mask = &words[words.len() - n_words..];
            let forced = self.constraint.forced(mask).filter(|&token| allows(mask, token));
            let Some(token) = forced.filter(|_| began.elapsed() < ahead.patience) else {
                break;
            };
            if !go_on(&mut self.constraint, token, words)? {
                break;
            }
            seen.tokens.push(token);
        }
        Ok(())
    }
}

fn allows(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32)
        .is_some_and(|word| word >> (token % 32) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Token `n` of a text is `text[n]`, or `32 + n` in its place.
    struct Spelled {
        text: &'static [u32],
        n_tokens: usize,
        goes_back: bool,
    }

    impl TokenConstraint for Spelled {
        fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
            words.fill(0);
            words[0] = 1 << self.text[self.n_tokens];
            if self.n_tokens == 2 {
                words[1] = 1 << self.n_tokens;
            }
            Ok(())
        }

        fn commit(&mut self, _: u32) -> Result<(), ConstraintFailure> {
            self.n_tokens += 1;
            Ok(())
        }

        fn is_done(&self) -> bool {
            self.n_tokens == self.text.len()
        }

        fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
            if self.goes_back {
                self.n_tokens -= n_tokens;
                return Ok(());
            }
            Err(ConstraintFailure {
                reason: "it cannot".to_owned(),
            })
        }
    }

    fn check(guess: &[u32], n_forced: usize, expected: &[u32], n_masks: usize) {
        for goes_back in [false, true] {
            for is_for_this_step in [false, true] {
                let source = ConstraintSource::new(move || {
                    Box::new(Spelled {
                        text: &[1, 2, 3, 4, 5],
                        n_tokens: 0,
                        goes_back,
                    })
                });
                let mut text = MaskedText::begin(source);
                let mut words = Vec::new();
                text.commit(&[1]).unwrap();
                text.mask(2, &mut words).unwrap();
                let ahead = LookAhead {
                    guess: guess.to_vec(),
                    n_forced,
                    patience: Duration::MAX,
                    is_for_this_step,
                };
                let seen = text.look_ahead(2, &ahead, &mut words).unwrap();
                assert_eq!(seen.tokens, expected, "{guess:?}");
                let n_masks = if is_for_this_step {
                    n_masks
                } else {
                    1 + seen.n_guessed
                };
                assert_eq!(words.len(), 2 * n_masks, "{guess:?}");
                assert_eq!(words[..2], [1 << 2, 0]);
                let mut again = Vec::new();
                text.mask(2, &mut again).unwrap();
                assert_eq!(again, words[..2], "it is where it was");
            }
        }
    }

    #[test]
    fn guesses_have_masks_as_far_as_they_are_allowed() {
        check(&[], 0, &[], 1);
        check(&[2, 3], 0, &[2, 3], 3);
        check(&[2, 34, 4], 0, &[2, 34, 4], 4);
        check(&[2, 7, 4], 0, &[2], 2);
        check(&[7], 0, &[], 1);
        // The last token ends the text.
        check(&[2, 3, 4, 5], 0, &[2, 3, 4], 4);
    }

    #[test]
    fn where_there_is_no_choice_the_text_goes_on_by_itself() {
        check(&[], 8, &[2], 2);
        check(&[2, 3], 8, &[2, 3, 4], 4);
        check(&[2, 3], 1, &[2, 3, 4], 4);
        check(&[2, 7], 8, &[2], 2);
    }

    /// Allows the number of tokens that it took in, and fails at the third without taking it.
    struct FailsAtThree(u32);

    impl TokenConstraint for FailsAtThree {
        fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
            words[0] = 1 << self.0;
            Ok(())
        }

        fn commit(&mut self, _: u32) -> Result<(), ConstraintFailure> {
            if self.0 == 2 {
                return Err(ConstraintFailure {
                    reason: "it fails".to_owned(),
                });
            }
            self.0 += 1;
            Ok(())
        }

        fn is_done(&self) -> bool {
            false
        }

        fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
            self.0 -= n_tokens as u32;
            Ok(())
        }
    }

    #[test]
    fn a_constraint_that_fails_in_a_guess_begins_again() {
        let mut text = MaskedText::begin(ConstraintSource::new(|| Box::new(FailsAtThree(0))));
        let mut words = Vec::new();
        text.commit(&[0]).unwrap();
        text.mask(1, &mut words).unwrap();
        let ahead = LookAhead {
            guess: vec![1, 2],
            patience: Duration::MAX,
            ..LookAhead::default()
        };
        let seen = text.look_ahead(1, &ahead, &mut words).unwrap();
        assert_eq!(seen.tokens, [1]);
        text.mask(1, &mut words).unwrap();
        assert_eq!(words, [1 << 1], "it is where it was");
    }

    /// Allows everything once a mask could not be computed, which is at the second place.
    struct Leaves {
        n_tokens: usize,
        left_at: Option<usize>,
    }

    impl TokenConstraint for Leaves {
        fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
            if self.n_tokens == 2 {
                self.left_at.get_or_insert(2);
            }
            words[0] = if self.has_left() { u32::MAX } else { 2 };
            Ok(())
        }

        fn commit(&mut self, _: u32) -> Result<(), ConstraintFailure> {
            self.n_tokens += 1;
            Ok(())
        }

        fn is_done(&self) -> bool {
            false
        }

        fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
            self.n_tokens -= n_tokens;
            if self.left_at.is_some_and(|left_at| left_at > self.n_tokens) {
                return Err(ConstraintFailure {
                    reason: "it does not return".to_owned(),
                });
            }
            Ok(())
        }

        fn has_left(&self) -> bool {
            self.left_at.is_some()
        }
    }

    #[test]
    fn a_text_leaves_its_grammar_by_what_was_sampled_alone() {
        let source = ConstraintSource::new(|| {
            Box::new(Leaves {
                n_tokens: 0,
                left_at: None,
            })
        });
        let mut text = MaskedText::begin(source);
        let ahead = LookAhead {
            guess: vec![1, 1],
            patience: Duration::MAX,
            is_for_this_step: true,
            ..LookAhead::default()
        };
        for (expected, n_guessed) in [(2, 0), (u32::MAX, 2), (u32::MAX, 2)] {
            let mut words = Vec::new();
            text.commit(&[1]).unwrap();
            text.mask(1, &mut words).unwrap();
            let seen = text.look_ahead(1, &ahead, &mut words).unwrap();
            assert_eq!((seen.n_guessed, words.len()), (n_guessed, 1 + n_guessed));
            assert_eq!(words[0], expected);
        }
    }
}

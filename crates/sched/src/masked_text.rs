//! [`MaskedText`]: the text of a constrained sample, its next mask, and the masks behind tokens that are guessed.
//!
//! Separate from the threads that compute masks, because it decides which guesses a constraint allows. Invariant: what was guessed is
//! taken back before a sampled token is taken in, so that a text is where its sampled tokens left it; where a constraint cannot go back, it
//! begins again and takes them once more.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{
    constraint::{ConstraintFailure, ConstraintSource, TokenConstraint},
    sync::{AtomicBool, Mutex, MutexGuard, Ordering},
};

/// A constrained sample as far as its tokens are known.
pub(crate) struct MaskedText {
    constraint: Box<dyn TokenConstraint>,
    source: ConstraintSource,
    /// What was sampled.
    tokens: Vec<u32>,
    /// Guesses that the constraint took in behind them.
    n_ahead: usize,
    /// Whether no guess can follow.
    is_at_end: bool,
    /// Whether the constraint failed, so that it is unknown where it is.
    is_lost: bool,
}

/// How far masks are computed ahead of what is sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookAhead {
    /// Tokens known when this was asked for.
    pub(crate) at: usize,
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
    /// Tokens behind which it was seen.
    pub(crate) at: usize,
    /// Tokens that the constraint allows one after the other: of the guess, and those that it forces.
    pub(crate) tokens: Vec<u32>,
    /// Those among them that came from the guess.
    pub(crate) n_guessed: usize,
    /// Whether the constraint refuses what is guessed behind these.
    pub(crate) is_refused: bool,
}

impl Seen {
    /// Those of the forced tokens that may follow `known`, the tokens of the sequence, which has grown since as was seen.
    pub(crate) fn behind(&self, known: &[u32]) -> Option<&[u32]> {
        let newer = known.get(self.at..)?;
        let rest = self.tokens.strip_prefix(newer)?;
        let is_forced = !newer.is_empty() && newer.len() >= self.n_guessed;
        (is_forced && !rest.is_empty()).then_some(rest)
    }
}

impl MaskedText {
    pub(crate) fn begin(source: ConstraintSource) -> Self {
        Self {
            constraint: source.begin(),
            source,
            tokens: Vec::new(),
            n_ahead: 0,
            is_at_end: false,
            is_lost: false,
        }
    }

    /// Takes in what was sampled.
    pub(crate) fn commit(&mut self, tokens: &[u32]) -> Result<(), ConstraintFailure> {
        self.come_back()?;
        for &token in tokens {
            self.constraint.commit(token)?;
            self.tokens.push(token);
        }
        Ok(())
    }

    /// Sampled tokens that it has taken in.
    pub(crate) fn n_sampled(&self) -> usize {
        self.tokens.len()
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

    /// Follows a guess, and appends the mask behind each token that the constraint allows and that does not end the text. Returns how many
    /// these are. `words` ends with the mask of the first.
    pub(crate) fn follow(&mut self, n_words: usize, guess: &[u32], words: &mut Vec<u32>) -> usize {
        let mut n_followed = 0;
        for &token in guess {
            if !allows(&words[words.len() - n_words..], token) || !self.take(n_words, token, words) {
                break;
            }
            n_followed += 1;
        }
        n_followed
    }

    /// Follows the text as long as the constraint leaves no choice of it, for `n_tokens` at most and until there is no time, and appends the
    /// mask behind each token. Returns the tokens. `words` ends with the mask of the first.
    pub(crate) fn follow_forced(
        &mut self,
        n_words: usize,
        n_tokens: usize,
        words: &mut Vec<u32>,
        has_time: &dyn Fn() -> bool,
    ) -> Vec<u32> {
        let mut tokens = Vec::new();
        while tokens.len() < n_tokens && !self.is_at_end && !self.is_lost {
            let mask = &words[words.len() - n_words..];
            let constraint = &self.constraint;
            let Ok(forced) = catch_unwind(AssertUnwindSafe(|| constraint.forced(mask))) else {
                self.is_lost = true;
                break;
            };
            let forced = forced.filter(|&token| allows(mask, token));
            let Some(token) = forced.filter(|_| has_time()) else {
                break;
            };
            if !self.take(n_words, token, words) {
                break;
            }
            tokens.push(token);
        }
        tokens
    }

    /// Takes a guess in and appends the mask behind it. Returns whether there is one.
    fn take(&mut self, n_words: usize, token: u32, words: &mut Vec<u32>) -> bool {
        let start = words.len();
        let constraint = &mut self.constraint;
        let taken = catch_unwind(AssertUnwindSafe(|| {
            let had_left = constraint.has_left();
            constraint.commit(token)?;
            if constraint.is_done() {
                return Ok(false);
            }
            words.resize(start + n_words, 0);
            constraint.mask(&mut words[start..])?;
            // Where a sampled text leaves is for its own mask to say: one that begins again would not know it.
            Ok(!constraint.is_done() && constraint.has_left() == had_left)
        }));
        let has_mask = matches!(taken, Ok(Ok::<bool, ConstraintFailure>(true)));
        match taken {
            Ok(Ok(_)) => self.n_ahead += 1,
            Ok(Err(_)) | Err(_) => self.is_lost = true,
        }
        self.is_at_end |= !has_mask;
        if !has_mask {
            words.truncate(start);
        }
        has_mask
    }

    /// Takes back what was followed.
    ///
    /// # Errors
    /// Why the constraint, begun again, does not take what was sampled.
    pub(crate) fn come_back(&mut self) -> Result<(), ConstraintFailure> {
        self.is_at_end = false;
        let n_ahead = std::mem::take(&mut self.n_ahead);
        if !self.is_lost && n_ahead > 0 {
            let constraint = &mut self.constraint;
            let back = catch_unwind(AssertUnwindSafe(|| constraint.rollback(n_ahead)));
            self.is_lost = !matches!(back, Ok(Ok(())));
        }
        if self.is_lost {
            self.constraint = self.source.begin();
            for &token in &self.tokens {
                self.constraint.commit(token)?;
            }
            self.is_lost = false;
        }
        Ok(())
    }
}

const NOT_POISONED: &str = "panics of constraints are caught";

/// A text that a worker may still look ahead in while the engine has its mask.
pub(crate) struct SharedText {
    text: Mutex<MaskedText>,
    is_wanted: AtomicBool,
}

impl SharedText {
    pub(crate) fn new(text: MaskedText) -> Self {
        Self {
            text: Mutex::new(text),
            is_wanted: AtomicBool::new(false),
        }
    }

    /// Tells who looks ahead that there is more to take in.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Whether the text is wanted for more.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Opens it for what it was wanted for, when no other worker looks ahead in it any more.
    pub(crate) fn open(&self) -> MutexGuard<'_, MaskedText> {
        let text = self.text.lock().expect(NOT_POISONED);
        self.is_wanted.store(false, Ordering::Relaxed);
        text
    }

    /// Opens it to look ahead behind `n_sampled` tokens, unless it is wanted for more or has more.
    pub(crate) fn open_at(&self, n_sampled: usize) -> Option<MutexGuard<'_, MaskedText>> {
        let text = self.text.lock().expect(NOT_POISONED);
        (!self.is_wanted() && text.n_sampled() == n_sampled).then_some(text)
    }
}

/// Whether the guess behind those that were followed is not allowed. `words` ends with the mask of its place.
pub(crate) fn refuses(guess: &[u32], n_followed: usize, n_words: usize, words: &[u32]) -> bool {
    let next = guess.get(n_followed);
    next.is_some_and(|&token| !allows(&words[words.len() - n_words..], token))
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

    /// Follows a guess and what is forced behind it, and comes back.
    fn look(text: &mut MaskedText, guess: &[u32], n_forced: usize, words: &mut Vec<u32>) -> Seen {
        let n_words = words.len();
        let n_guessed = text.follow(n_words, guess, words);
        let of_guess = words.clone();
        let mut tokens = guess[..n_guessed].to_vec();
        tokens.extend(text.follow_forced(n_words, n_forced, words, &|| true));
        text.come_back().unwrap();
        Seen {
            at: 0,
            tokens,
            n_guessed,
            is_refused: refuses(guess, n_guessed, n_words, &of_guess),
        }
    }

    fn check(guess: &[u32], n_forced: usize, expected: &[u32], n_masks: usize) {
        for goes_back in [false, true] {
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
            let seen = look(&mut text, guess, n_forced, &mut words);
            assert_eq!(seen.tokens, expected, "{guess:?}");
            assert_eq!(words.len(), 2 * n_masks, "{guess:?}");
            assert_eq!(words[..2], [1 << 2, 0]);
            let mut again = Vec::new();
            text.mask(2, &mut again).unwrap();
            assert_eq!(again, words[..2], "it is where it was");
            // Without coming back first.
            text.follow(2, guess, &mut words);
            text.commit(&[2]).unwrap();
            text.mask(2, &mut again).unwrap();
            assert_eq!(again, [1 << 3, 1 << 2], "it is behind what was sampled");
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
        let seen = look(&mut text, &[1, 2], 0, &mut words);
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
        for (expected, n_guessed) in [(2, 0), (u32::MAX, 2), (u32::MAX, 2)] {
            let mut words = Vec::new();
            text.commit(&[1]).unwrap();
            text.mask(1, &mut words).unwrap();
            let seen = look(&mut text, &[1, 1], 0, &mut words);
            assert_eq!((seen.n_guessed, words.len()), (n_guessed, 1 + n_guessed));
            assert_eq!(words[0], expected);
        }
    }

    #[test]
    fn what_is_forced_is_expected_behind_what_was_guessed() {
        let seen = Seen {
            at: 2,
            tokens: vec![5, 6, 7, 8],
            n_guessed: 2,
            is_refused: false,
        };
        for (known, expected) in [
            (&[1, 1, 5, 6][..], Some(&[7, 8][..])),
            (&[1, 1, 5, 6, 7], Some(&[8])),
            // A look-up finds what is left of the guess again.
            (&[1, 1, 5], None),
            (&[1, 1], None),
            (&[1, 1, 5, 9], None),
            (&[1, 1, 5, 6, 7, 8], None),
            (&[1, 1, 5, 6, 7, 8, 9], None),
            (&[1], None),
        ] {
            assert_eq!(seen.behind(known), expected, "{known:?}");
        }
    }
}

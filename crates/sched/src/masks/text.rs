//! [`MaskedText`]: the text of a constrained sample, its next mask, and the masks after draft tokens.
//!
//! It decides which draft tokens a constraint allows. Invariant: draft tokens are rolled back before a
//! sampled token is committed, so the text always reflects its sampled tokens. A constraint that cannot roll
//! back is restarted and receives them again.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{
    masks::constraint::{ConstraintFailure, ConstraintSource, TokenConstraint},
    sync::{AtomicBool, Mutex, MutexGuard, Ordering},
};

/// A constrained sample up to its known tokens.
pub(crate) struct MaskedText {
    constraint: Box<dyn TokenConstraint>,
    source: ConstraintSource,
    /// The sampled tokens.
    tokens: Vec<u32>,
    /// Number of draft tokens that the constraint has taken after them.
    n_ahead: usize,
    /// Whether no draft token can follow.
    is_at_end: bool,
    /// Whether the constraint failed, so that its state is unknown.
    is_lost: bool,
}

/// How far masks are computed ahead of the sampled tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookAhead {
    /// Number of tokens known when it was requested.
    pub(crate) at: usize,
    /// The likely continuation, from a look-up.
    pub(crate) draft: Vec<u32>,
    /// Maximum number of tokens to add after it if the constraint leaves no choice of text.
    pub(crate) n_forced: usize,
    /// Time limit for these tokens.
    pub(crate) patience: Duration,
    /// Whether these get masks too. Otherwise their step has begun already, and they are for the next one.
    pub(crate) is_for_this_step: bool,
}

/// The result of looking ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Number of tokens before it.
    pub(crate) at: usize,
    /// Tokens that the constraint allows in sequence: those of the draft, then forced ones.
    pub(crate) tokens: Vec<u32>,
    /// Number of these tokens that are from the draft.
    pub(crate) n_drafted: usize,
    /// Whether the constraint refuses the draft token after these.
    pub(crate) is_refused: bool,
}

impl Seen {
    /// Returns the forced tokens that may follow `known`, the tokens of the sequence, which has grown since.
    pub(crate) fn behind(&self, known: &[u32]) -> Option<&[u32]> {
        let newer = known.get(self.at..)?;
        let rest = self.tokens.strip_prefix(newer)?;
        let is_forced = !newer.is_empty() && newer.len() >= self.n_drafted;
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

    /// Commits sampled tokens.
    pub(crate) fn commit(&mut self, tokens: &[u32]) -> Result<(), ConstraintFailure> {
        self.come_back()?;
        for &token in tokens {
            self.constraint.commit(token)?;
            self.tokens.push(token);
        }
        Ok(())
    }

    /// Returns the number of committed sampled tokens.
    pub(crate) fn n_sampled(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether nothing may follow.
    pub(crate) fn is_done(&self) -> bool {
        self.constraint.is_done()
    }

    /// Writes the next mask, of `n_words` words.
    pub(crate) fn mask(&mut self, n_words: usize, words: &mut Vec<u32>) -> Result<(), ConstraintFailure> {
        words.clear();
        words.resize(n_words, 0);
        self.constraint.mask(words)
    }

    /// Follows a draft, and appends the mask after each token that the constraint allows and that does not
    /// end the text. Returns the number of such tokens. `words` ends with the mask of the first draft token.
    pub(crate) fn follow(&mut self, n_words: usize, draft: &[u32], words: &mut Vec<u32>) -> usize {
        let mut n_followed = 0;
        for &token in draft {
            if !allows(&words[words.len() - n_words..], token) || !self.take(n_words, token, words) {
                break;
            }
            n_followed += 1;
        }
        n_followed
    }

    /// Follows the text while the constraint leaves no choice, for at most `n_tokens` and until time is up,
    /// and appends the mask after each token. Returns the tokens. `words` ends with the mask of the first.
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

    /// Takes a draft token and appends the mask after it. Returns whether there is one.
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
            // Only a sampled text's own mask may decide that it leaves the constraint: a restarted constraint
            // would not know it.
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

    /// Rolls back the draft tokens.
    ///
    /// # Errors
    /// The reason why the restarted constraint does not accept the sampled tokens.
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

/// A text in which a worker may look ahead while the engine has its mask.
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

    /// Tells a worker that looks ahead that there are tokens to commit.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Returns whether the text is wanted for more tokens.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Locks the text for commits, waiting for a worker that looks ahead.
    pub(crate) fn open(&self) -> MutexGuard<'_, MaskedText> {
        let text = self.text.lock().expect(NOT_POISONED);
        self.is_wanted.store(false, Ordering::Relaxed);
        text
    }

    /// Locks the text to look ahead after `n_sampled` tokens, unless it is wanted for more tokens or already
    /// has more.
    pub(crate) fn open_at(&self, n_sampled: usize) -> Option<MutexGuard<'_, MaskedText>> {
        let text = self.text.lock().expect(NOT_POISONED);
        (!self.is_wanted() && text.n_sampled() == n_sampled).then_some(text)
    }
}

/// Returns whether the draft token after the followed ones is not allowed. `words` ends with the mask at its
/// position.
pub(crate) fn refuses(draft: &[u32], n_followed: usize, n_words: usize, words: &[u32]) -> bool {
    let next = draft.get(n_followed);
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

    /// Follows a draft and the tokens forced after it, and rolls back.
    fn look(text: &mut MaskedText, draft: &[u32], n_forced: usize, words: &mut Vec<u32>) -> Seen {
        let n_words = words.len();
        let n_drafted = text.follow(n_words, draft, words);
        let of_draft = words.clone();
        let mut tokens = draft[..n_drafted].to_vec();
        tokens.extend(text.follow_forced(n_words, n_forced, words, &|| true));
        text.come_back().unwrap();
        Seen {
            at: 0,
            tokens,
            n_drafted,
            is_refused: refuses(draft, n_drafted, n_words, &of_draft),
        }
    }

    fn check(draft: &[u32], n_forced: usize, expected: &[u32], n_masks: usize) {
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
            let seen = look(&mut text, draft, n_forced, &mut words);
            assert_eq!(seen.tokens, expected, "{draft:?}");
            assert_eq!(words.len(), 2 * n_masks, "{draft:?}");
            assert_eq!(words[..2], [1 << 2, 0]);
            let mut again = Vec::new();
            text.mask(2, &mut again).unwrap();
            assert_eq!(again, words[..2], "it is where it was");
            // Without rolling back first.
            text.follow(2, draft, &mut words);
            text.commit(&[2]).unwrap();
            text.mask(2, &mut again).unwrap();
            assert_eq!(again, [1 << 3, 1 << 2], "it is behind what was sampled");
        }
    }

    #[test]
    fn drafts_have_masks_as_far_as_they_are_allowed() {
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

    /// Allows only the token equal to the number of committed tokens, and fails at the third without
    /// committing it.
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
    fn a_constraint_that_fails_in_a_draft_begins_again() {
        let mut text = MaskedText::begin(ConstraintSource::new(|| Box::new(FailsAtThree(0))));
        let mut words = Vec::new();
        text.commit(&[0]).unwrap();
        text.mask(1, &mut words).unwrap();
        let seen = look(&mut text, &[1, 2], 0, &mut words);
        assert_eq!(seen.tokens, [1]);
        text.mask(1, &mut words).unwrap();
        assert_eq!(words, [1 << 1], "it is where it was");
    }

    /// Allows everything after a mask could not be computed, which happens at the second position.
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
        for (expected, n_drafted) in [(2, 0), (u32::MAX, 2), (u32::MAX, 2)] {
            let mut words = Vec::new();
            text.commit(&[1]).unwrap();
            text.mask(1, &mut words).unwrap();
            let seen = look(&mut text, &[1, 1], 0, &mut words);
            assert_eq!((seen.n_drafted, words.len()), (n_drafted, 1 + n_drafted));
            assert_eq!(words[0], expected);
        }
    }

    #[test]
    fn what_is_forced_is_expected_behind_what_was_drafted() {
        let seen = Seen {
            at: 2,
            tokens: vec![5, 6, 7, 8],
            n_drafted: 2,
            is_refused: false,
        };
        for (known, expected) in [
            (&[1, 1, 5, 6][..], Some(&[7, 8][..])),
            (&[1, 1, 5, 6, 7], Some(&[8])),
            // A look-up finds the rest of the draft again.
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

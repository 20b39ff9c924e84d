//! [`LookUp`]: where the next tokens of a sequence may have been said before: in an earlier answer to the same prompt, or in its own
//! text.
//!
//! Separate from what is made of it, because it knows tokens alone. The earlier answer goes first, as long as the sequence says the same; then
//! its own text is looked through. Invariant: of the earlier answer no token is told that follows another one than the sequence's.

use crate::{
    ngram::{Match, NgramIndex, followed_by},
    sync::Arc,
};

/// An answer that was given to the prompt of a sequence before.
#[derive(Debug)]
pub(crate) struct EarlierAnswer {
    tokens: Arc<[u32]>,
    /// Tokens of the prompt.
    n_prompt: usize,
    /// Tokens of both answers that are known to agree.
    n_same: usize,
}

impl EarlierAnswer {
    /// The answer that `tokens` were behind a prompt of `n_prompt` others.
    pub(crate) fn new(tokens: Arc<[u32]>, n_prompt: usize) -> Self {
        Self {
            tokens,
            n_prompt,
            n_same: 0,
        }
    }

    /// Compares what is new of a sequence. Returns whether it says the same so far, and there is more.
    fn advance(&mut self, tokens: &[u32]) -> bool {
        let (said, earlier) = (
            &tokens[self.n_prompt + self.n_same..],
            &self.tokens[self.n_same..],
        );
        if said.len() >= earlier.len() || !earlier.starts_with(said) {
            return false;
        }
        self.n_same += said.len();
        true
    }
}

/// Where the next tokens of a sequence were said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// In its own text.
    Own(Match),
    /// In the earlier answer, behind as many of its tokens.
    Earlier {
        /// Index of the next token there.
        next: usize,
    },
}

/// What the next tokens of a sequence are looked up in.
#[derive(Debug, Default)]
pub(crate) struct LookUp {
    earlier: Option<EarlierAnswer>,
    index: NgramIndex,
}

impl LookUp {
    /// Looks in an earlier answer first.
    pub(crate) fn follow(&mut self, earlier: EarlierAnswer) {
        self.earlier = Some(earlier);
    }

    /// Looks up what follows `tokens`. The tokens of earlier calls must be their beginning.
    pub(crate) fn find(&mut self, tokens: &[u32]) -> Option<Found> {
        if let Some(earlier) = &mut self.earlier {
            if earlier.advance(tokens) {
                return Some(Found::Earlier { next: earlier.n_same });
            }
            self.earlier = None;
        }
        self.index.find(tokens).map(Found::Own)
    }

    /// How many tokens are known to follow.
    pub(crate) fn n_following(&self, found: Found) -> usize {
        match (found, &self.earlier) {
            (Found::Own(_), _) => usize::MAX,
            (Found::Earlier { next }, Some(earlier)) => earlier.tokens.len() - next,
            (Found::Earlier { .. }, None) => 0,
        }
    }

    /// The token that follows at distance `offset`, where `draft` holds those before it.
    pub(crate) fn followed_by(&self, tokens: &[u32], found: Found, offset: usize, draft: &[u32]) -> u32 {
        match found {
            Found::Own(found) => followed_by(tokens, found, offset, draft),
            Found::Earlier { next } => {
                let earlier = self.earlier.as_ref().expect("it was found there");
                earlier.tokens[next + offset]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up() -> LookUp {
        let mut look_up = LookUp::default();
        look_up.follow(EarlierAnswer::new(Arc::from([7, 8, 6, 1, 2]), 3));
        look_up
    }

    fn next(look_up: &mut LookUp, tokens: &[u32]) -> Option<u32> {
        let found = look_up.find(tokens)?;
        Some(look_up.followed_by(tokens, found, 0, &[]))
    }

    #[test]
    fn the_earlier_answer_is_told_as_long_as_it_is_said() {
        let mut look_up = look_up();
        let text = [1, 2, 3, 7, 8, 6, 1, 2, 5];
        assert_eq!(look_up.find(&text[..3]), Some(Found::Earlier { next: 0 }));
        assert_eq!(next(&mut look_up, &text[..3]), Some(7));
        let found = look_up.find(&text[..6]).unwrap();
        assert_eq!(
            (found, look_up.n_following(found)),
            (Found::Earlier { next: 3 }, 2)
        );
        assert_eq!(look_up.followed_by(&text[..6], found, 1, &[1]), 2);
        // At its end the own text is next.
        assert_eq!(next(&mut look_up, &text[..8]), Some(3));
        assert_eq!(next(&mut look_up, &text), None);
    }

    #[test]
    fn behind_another_token_nothing_is_told_any_more() {
        let mut look_up = look_up();
        assert_eq!(next(&mut look_up, &[1, 2, 3, 7]), Some(8));
        assert_eq!(next(&mut look_up, &[1, 2, 3, 7, 5]), None);
        // Nor where it says the same again.
        assert_eq!(next(&mut look_up, &[1, 2, 3, 7, 5, 7, 8]), None);
        assert_eq!(next(&mut look_up, &[1, 2, 3, 7, 5, 7, 8, 1, 2]), Some(3));
    }
}

//! [`LookUp`]: finds the next tokens of a sequence in earlier text: in an earlier answer to the same prompt,
//! or in its own text.
//!
//! It knows only tokens. The earlier answer has priority as long as the sequence agrees with it; then its own
//! text is searched. Invariant: a token of the earlier answer is revealed only if all tokens before it agree
//! with the sequence's.

use crate::{
    draft::{
        ngram::{Match, NgramIndex, followed_by},
        tokens::{Class, Draft},
    },
    sync::Arc,
};

/// An earlier answer to the prompt of a sequence.
#[derive(Debug)]
pub(crate) struct EarlierAnswer {
    tokens: Arc<[u32]>,
    /// Number of tokens of the prompt.
    n_prompt: usize,
    /// Number of leading tokens in which both answers agree.
    n_same: usize,
}

impl EarlierAnswer {
    /// Creates the earlier answer `tokens` to a prompt of `n_prompt` tokens.
    pub(crate) fn new(tokens: Arc<[u32]>, n_prompt: usize) -> Self {
        Self {
            tokens,
            n_prompt,
            n_same: 0,
        }
    }

    /// Compares the sequence's new tokens. Returns whether it agrees so far and there are more tokens.
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

/// Where the next tokens of a sequence were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// In its own text.
    Own(Match),
    /// In the earlier answer, after as many of its tokens.
    Earlier {
        /// Index of the next token there.
        next: usize,
    },
}

/// The texts in which the next tokens of a sequence are looked up.
#[derive(Debug, Default)]
pub(crate) struct LookUp {
    earlier: Option<EarlierAnswer>,
    index: NgramIndex,
}

impl LookUp {
    /// Searches an earlier answer first.
    pub(crate) fn follow(&mut self, earlier: EarlierAnswer) {
        self.earlier = Some(earlier);
    }

    /// Returns at most `max` tokens that may follow `tokens`, which must begin with the tokens of earlier calls.
    pub(crate) fn draft(&mut self, tokens: &[u32], max: usize) -> Option<Draft> {
        let found = self.find(tokens)?;
        let mut draft = Draft::at(tokens.len());
        for offset in 0..max.min(self.n_following(found)) {
            let class = match found {
                Found::Own(found) => Class::of_match(found.len + offset),
                Found::Earlier { .. } => Class::EARLIER,
            };
            let token = self.followed_by(tokens, found, offset, &draft.tokens);
            draft.push(token, class);
        }
        Some(draft)
    }

    fn find(&mut self, tokens: &[u32]) -> Option<Found> {
        if let Some(earlier) = &mut self.earlier {
            if earlier.advance(tokens) {
                return Some(Found::Earlier { next: earlier.n_same });
            }
            self.earlier = None;
        }
        self.index.find(tokens).map(Found::Own)
    }

    /// Returns the number of tokens known to follow.
    fn n_following(&self, found: Found) -> usize {
        match (found, &self.earlier) {
            (Found::Own(_), _) => usize::MAX,
            (Found::Earlier { next }, Some(earlier)) => earlier.tokens.len() - next,
            (Found::Earlier { .. }, None) => 0,
        }
    }

    /// Returns the token at distance `offset` after the match; `draft` holds those before it.
    fn followed_by(&self, tokens: &[u32], found: Found, offset: usize, draft: &[u32]) -> u32 {
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
        // After its end, the sequence's own text is next.
        assert_eq!(next(&mut look_up, &text[..8]), Some(3));
        assert_eq!(next(&mut look_up, &text), None);
    }

    #[test]
    fn behind_another_token_nothing_is_told_any_more() {
        let mut look_up = look_up();
        assert_eq!(next(&mut look_up, &[1, 2, 3, 7]), Some(8));
        assert_eq!(next(&mut look_up, &[1, 2, 3, 7, 5]), None);
        // Not even where it agrees again.
        assert_eq!(next(&mut look_up, &[1, 2, 3, 7, 5, 7, 8]), None);
        assert_eq!(next(&mut look_up, &[1, 2, 3, 7, 5, 7, 8, 1, 2]), Some(3));
    }
}

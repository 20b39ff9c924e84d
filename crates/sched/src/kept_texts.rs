//! [`KeptTexts`]: texts that have ended, for the look-ups of later ones that begin alike.
//!
//! Separate from the look-up, which knows nothing of what stays. A request that is asked again, or one more question about a long
//! prompt, finds in them what the model said before. Invariants: a text is given only to sequences with the same first page, so of one
//! tenant and one adapter; no more than [`MAX_TOKENS`] tokens stay.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    ngram::{Match, NgramIndex},
    prefix::PageKey,
};

/// Tokens of all texts at most. A token takes up to 68 bytes with its n-grams.
const MAX_TOKENS: usize = 1 << 17;

/// Texts of one beginning at most.
const MAX_ALIKE: usize = 4;

/// A text that has ended, with its n-grams.
#[derive(Debug)]
pub(crate) struct KeptText {
    tokens: Vec<u32>,
    index: NgramIndex,
}

impl KeptText {
    /// Takes a text, and the index that looked it up while it was generated.
    pub(crate) fn new(tokens: Vec<u32>, mut index: NgramIndex) -> Self {
        index.extend(&tokens);
        Self { tokens, index }
    }

    /// Where the newest of the tokens of another text occurred.
    pub(crate) fn find(&self, tokens: &[u32]) -> Option<Match> {
        self.index.find_in(&self.tokens, tokens)
    }

    /// The tokens from index `next` on.
    pub(crate) fn from(&self, next: usize) -> &[u32] {
        &self.tokens[next..]
    }
}

/// The texts, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct KeptTexts {
    texts: VecDeque<(PageKey, Arc<KeptText>)>,
    n_tokens: usize,
}

impl KeptTexts {
    /// Keeps a text by the name of its first page, in place of what it continues or repeats, and of the oldest where there is no room.
    pub(crate) fn keep(&mut self, first_page: PageKey, text: KeptText) {
        if text.tokens.len() > MAX_TOKENS {
            return;
        }
        self.texts.retain(|(key, other)| {
            let is_part = *key == first_page && text.tokens.starts_with(&other.tokens);
            if is_part {
                self.n_tokens -= other.tokens.len();
            }
            !is_part
        });
        let alike = |(key, _): &&(PageKey, Arc<KeptText>)| *key == first_page;
        if self.texts.iter().filter(alike).count() == MAX_ALIKE {
            let oldest = self.texts.iter().position(|(key, _)| *key == first_page);
            self.forget(oldest.expect("there are some"));
        }
        while self.n_tokens + text.tokens.len() > MAX_TOKENS {
            self.forget(0);
        }
        self.n_tokens += text.tokens.len();
        self.texts.push_back((first_page, Arc::new(text)));
    }

    /// The texts that begin with a page, the newest first.
    pub(crate) fn of(&self, first_page: PageKey) -> Vec<Arc<KeptText>> {
        let alike = self.texts.iter().rev().filter(|(key, _)| *key == first_page);
        alike.map(|(_, text)| Arc::clone(text)).collect()
    }

    fn forget(&mut self, idx: usize) {
        if let Some((_, text)) = self.texts.remove(idx) {
            self.n_tokens -= text.tokens.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tokens: Vec<u32>) -> KeptText {
        KeptText::new(tokens, NgramIndex::default())
    }

    fn lengths(texts: &KeptTexts, page: u128) -> Vec<usize> {
        let alike = texts.of(PageKey::from_number(page));
        alike.iter().map(|text| text.tokens.len()).collect()
    }

    #[test]
    fn what_began_otherwise_is_not_given() {
        let mut texts = KeptTexts::default();
        texts.keep(PageKey::from_number(1), text(vec![1; 20]));
        texts.keep(PageKey::from_number(2), text(vec![2; 30]));
        assert_eq!(lengths(&texts, 1), [20]);
        assert_eq!(lengths(&texts, 2), [30]);
        assert!(lengths(&texts, 3).is_empty());
    }

    #[test]
    fn a_text_takes_the_place_of_its_beginning_and_of_the_oldest_alike() {
        let mut texts = KeptTexts::default();
        let key = PageKey::from_number(7);
        texts.keep(key, text((0..20).collect()));
        texts.keep(key, text((0..30).collect()));
        assert_eq!(lengths(&texts, 7), [30]);
        texts.keep(key, text((0..30).collect()));
        assert_eq!(lengths(&texts, 7), [30], "the same once more");
        for n in 31..36 {
            texts.keep(key, text((1..n).collect()));
            texts.keep(key, text((2..n).collect()));
        }
        assert_eq!(
            lengths(&texts, 7),
            [33, 34, 30],
            "each took the place of its beginning"
        );
        for n in 40..46 {
            texts.keep(key, text((n..60).collect()));
        }
        assert_eq!(lengths(&texts, 7), [15, 16, 17, 18]);
        assert_eq!(texts.n_tokens, 66);
    }

    #[test]
    fn the_oldest_make_room_and_what_is_too_long_is_left_out() {
        let mut texts = KeptTexts::default();
        let half = MAX_TOKENS as u32 / 2;
        for page in 1..=3 {
            texts.keep(PageKey::from_number(page), text((0..half).collect()));
        }
        assert_eq!(
            [1, 2, 3].map(|page| lengths(&texts, page).len()),
            [0, 1, 1],
            "two have room"
        );
        texts.keep(PageKey::from_number(4), text((0..=2 * half).collect()));
        assert_eq!(texts.n_tokens, MAX_TOKENS);
        assert!(lengths(&texts, 4).is_empty());
    }
}

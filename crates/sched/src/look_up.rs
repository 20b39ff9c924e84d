//! [`LookUp`]: what may follow the newest tokens of a sequence, by the sequence itself and by earlier texts that began as it does.
//!
//! Separate from the index of one text, because here several are compared, and from what is done with the guess. Invariant: what is found is
//! a guess and nothing else; the tokens of another text go into no answer unless the model samples them.

use std::sync::Arc;

use crate::{
    kept_texts::KeptText,
    ngram::{Match, NgramIndex, followed_by},
};

/// Tokens that have to agree before an earlier text is believed.
const LEAST_KEPT: usize = 4;

/// An earlier occurrence of the newest tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Where it is in its text.
    place: Match,
    /// Which of the earlier texts has it; `None` for the sequence itself.
    kept_idx: Option<usize>,
}

impl Found {
    /// What the sequence itself has, with so many tokens that agree.
    #[cfg(test)]
    pub(crate) fn own(len: usize) -> Self {
        Self {
            place: Match { next: len, len },
            kept_idx: None,
        }
    }

    /// Tokens that agree.
    pub(crate) fn len(&self) -> usize {
        self.place.len
    }

    /// Whether it is in an earlier text.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept_idx.is_some()
    }
}

/// The texts that a sequence is looked up in.
#[derive(Debug, Default)]
pub(crate) struct LookUp {
    index: NgramIndex,
    /// The newest first.
    kept: Vec<Arc<KeptText>>,
}

impl LookUp {
    /// A look-up in the sequence itself and in earlier texts.
    pub(crate) fn with(kept: Vec<Arc<KeptText>>) -> Self {
        Self {
            index: NgramIndex::default(),
            kept,
        }
    }

    /// The longest earlier occurrence of the newest of `tokens`; of several as long the sequence's own, then the newest text's. The tokens
    /// of earlier calls must be their beginning.
    pub(crate) fn find(&mut self, tokens: &[u32]) -> Option<Found> {
        let own = self.index.find(tokens).map(|place| Found {
            place,
            kept_idx: None,
        });
        let mut best = own;
        for (idx, text) in self.kept.iter().enumerate() {
            let place = text.find(tokens).filter(|place| place.len >= LEAST_KEPT);
            if let Some(place) = place
                && best.is_none_or(|best| place.len > best.len())
            {
                best = Some(Found {
                    place,
                    kept_idx: Some(idx),
                });
            }
        }
        best
    }

    /// How many tokens can be guessed by what was found.
    pub(crate) fn n_following(&self, found: Found) -> usize {
        match found.kept_idx {
            // It repeats itself without end.
            None => usize::MAX,
            Some(idx) => self.kept[idx].from(found.place.next).len(),
        }
    }

    /// The token at distance `offset` behind what was found for `tokens`, where `draft` holds the guesses before it.
    ///
    /// # Panics
    /// Where `offset` is not below [`Self::n_following`].
    pub(crate) fn followed_by(&self, tokens: &[u32], found: Found, offset: usize, draft: &[u32]) -> u32 {
        match found.kept_idx {
            None => followed_by(tokens, found.place, offset, draft),
            Some(idx) => self.kept[idx].from(found.place.next)[offset],
        }
    }

    /// The index of the sequence itself, which has ended.
    pub(crate) fn into_index(self) -> NgramIndex {
        self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(kept: &[&[u32]]) -> LookUp {
        let texts = kept.iter().map(|tokens| {
            let index = NgramIndex::default();
            Arc::new(KeptText::new(tokens.to_vec(), index))
        });
        LookUp::with(texts.collect())
    }

    /// What is guessed behind `tokens`, four tokens at most.
    fn guessed(look_up: &mut LookUp, tokens: &[u32]) -> Vec<u32> {
        let Some(found) = look_up.find(tokens) else {
            return Vec::new();
        };
        let n = look_up.n_following(found).min(4);
        let mut draft = Vec::new();
        for offset in 0..n {
            draft.push(look_up.followed_by(tokens, found, offset, &draft));
        }
        draft
    }

    #[test]
    fn an_earlier_text_says_what_followed_until_it_ends() {
        let mut look_up = look_up(&[&[1, 2, 3, 4, 5, 6, 7, 8]]);
        assert_eq!(guessed(&mut look_up, &[1, 2, 3, 4]), [5, 6, 7, 8]);
        assert_eq!(guessed(&mut look_up, &[1, 2, 3, 4, 5, 6]), [7, 8]);
        assert!(guessed(&mut look_up, &[1, 2, 3, 4, 5, 6, 7, 8]).is_empty());
    }

    #[test]
    fn the_longest_is_taken_and_of_several_as_long_the_own() {
        let earlier = [1, 2, 3, 4, 50];
        let mut both = look_up(&[&earlier]);
        assert_eq!(guessed(&mut both, &[0, 2, 3, 4, 60, 1, 2, 3, 4])[0], 50);
        let mut alike = look_up(&[&earlier]);
        assert_eq!(guessed(&mut alike, &[1, 2, 3, 4, 60, 1, 2, 3, 4])[0], 60);
        let mut short = look_up(&[&[2, 3, 4, 50]]);
        assert!(
            guessed(&mut short, &[9, 2, 3, 4]).is_empty(),
            "three tokens say little of another text"
        );
        let mut newest = look_up(&[&[1, 2, 3, 4, 70], &earlier]);
        assert_eq!(guessed(&mut newest, &[1, 2, 3, 4]), [70]);
    }
}

//! [`WordPiece`]: BERT's longest-match-first encoding of words.
//!
//! It is greedy from the left. Invariant: a word gives either tokens that cover it or the one unknown token.

use super::{
    key_map::KeyMap,
    split::{Behavior, Pattern, Step},
};
use crate::TokenizerError;

/// BERT's encoding of words.
#[derive(Debug)]
pub(crate) struct WordPiece {
    /// Tokens that begin a word.
    pub(crate) starts: KeyMap,
    /// Tokens that continue one, without their mark.
    pub(crate) continuations: KeyMap,
    pub(crate) unknown: Option<u32>,
    /// Longer words become the unknown token without being read.
    pub(crate) max_word_chars: usize,
}

impl WordPiece {
    /// The usual limit of a word's length.
    pub(crate) const MAX_WORD_CHARS: usize = 100;

    /// Appends the tokens of one word to `out`.
    pub(crate) fn encode(&self, word: &str, out: &mut Vec<u32>) {
        let first = out.len();
        if word.chars().nth(self.max_word_chars).is_some() {
            out.extend(self.unknown);
            return;
        }
        let mut start = 0;
        while start < word.len() {
            let keys = if start == 0 {
                &self.starts
            } else {
                &self.continuations
            };
            let mut end = word.len().min(start + keys.max_len());
            let found = loop {
                while !word.is_char_boundary(end) {
                    end -= 1;
                }
                if end <= start {
                    break None;
                }
                if let Some(id) = keys.get(&word.as_bytes()[start..end]) {
                    break Some(id);
                }
                end -= 1;
            };
            let Some(id) = found else {
                out.truncate(first);
                out.extend(self.unknown);
                return;
            };
            out.push(id);
            start = end;
        }
    }
}

/// BERT's splitter: words and single punctuation characters.
pub(crate) fn bert_steps() -> Result<Vec<Step>, TokenizerError> {
    Ok(vec![
        Step::Pattern(Pattern::new(r"\s+", Behavior::Removed, false)?),
        Step::Pattern(Pattern::new(r"[\p{P}!-/:-@\[-`{-\~]", Behavior::Isolated, false)?),
    ])
}

/// Decodes a token that begins a word: with a space before it, except before punctuation and the like.
pub(crate) fn wordpiece_piece(word: &str) -> Vec<u8> {
    const CLEANUP: &[(&str, &str)] = &[
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    CLEANUP
        .iter()
        .fold(format!(" {word}"), |text, (from, to)| text.replace(from, to))
        .into_bytes()
}

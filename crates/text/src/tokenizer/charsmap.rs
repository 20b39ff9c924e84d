//! [`Charsmap`]: SentencePiece's precompiled normalization table.
//!
//! It is a binary format from an untrusted file: a double-array trie of byte strings and the texts that replace them.
//! Invariant: no index in the file is followed unchecked.
//!
//! Source: SentencePiece `normalizer.cc` and the darts-clone trie.

use unicode_segmentation::UnicodeSegmentation;

use crate::TokenizerError;

/// SentencePiece's precompiled normalization table.
#[derive(Clone, Debug)]
pub(crate) struct Charsmap {
    units: Vec<u32>,
    /// Replacements, each ended by a zero byte.
    replacements: String,
    matching: Matching,
}

/// Selects how entries are matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matching {
    /// The longest entry at each place, as SentencePiece does.
    Longest,
    /// Whole short grapheme clusters first, then characters, by their shortest entry, as Hugging Face does.
    Graphemes,
}

impl Charsmap {
    /// Reads a table.
    ///
    /// # Errors
    /// [`TokenizerError::Charsmap`] if it is damaged.
    pub(crate) fn new(blob: &[u8], matching: Matching) -> Result<Self, TokenizerError> {
        let damaged = |problem| TokenizerError::Charsmap { problem };
        let (n_trie_bytes, rest) = blob
            .split_first_chunk::<4>()
            .ok_or(damaged("it is shorter than its header"))?;
        let n_trie_bytes = u32::from_le_bytes(*n_trie_bytes) as usize;
        if n_trie_bytes > rest.len() || !n_trie_bytes.is_multiple_of(4) || n_trie_bytes == 0 {
            return Err(damaged("its trie does not fit it"));
        }
        let (trie, replacements) = rest.split_at(n_trie_bytes);
        let replacements = std::str::from_utf8(replacements)
            .map_err(|_| damaged("its replacements are not UTF-8"))?
            .to_owned();
        Ok(Self {
            units: trie
                .as_chunks::<4>()
                .0
                .iter()
                .map(|&unit| u32::from_le_bytes(unit))
                .collect(),
            replacements,
            matching,
        })
    }

    /// Returns the length of the longest replacement, in bytes.
    pub(crate) fn longest_replacement(&self) -> usize {
        self.replacements.split('\0').map(str::len).max().unwrap_or(0)
    }

    /// Applies the table.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        match self.matching {
            Matching::Longest => {
                let mut at = 0;
                while let Some(character) = text[at..].chars().next() {
                    // An entry that ends inside a character would leave half of it.
                    let longest = self
                        .entries(&text.as_bytes()[at..])
                        .filter(|&(n_bytes, _)| text.is_char_boundary(at + n_bytes))
                        .last();
                    if let Some((n_bytes, replacement)) = longest {
                        out.push_str(replacement);
                        at += n_bytes;
                    } else {
                        out.push(character);
                        at += character.len_utf8();
                    }
                }
            }
            Matching::Graphemes => {
                const SHORT_BYTES: usize = 6;
                for grapheme in text.graphemes(true) {
                    if grapheme.len() < SHORT_BYTES
                        && let Some((_, replacement)) = self.entries(grapheme.as_bytes()).next()
                    {
                        out.push_str(replacement);
                        continue;
                    }
                    for (at, character) in grapheme.char_indices() {
                        let bytes = &grapheme.as_bytes()[at..at + character.len_utf8()];
                        match self.entries(bytes).next() {
                            Some((_, replacement)) => out.push_str(replacement),
                            None => out.push(character),
                        }
                    }
                }
            }
        }
        out
    }

    /// Lists the entries that `bytes` begins with, shortest first: length and replacement.
    fn entries<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = (usize, &'a str)> {
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut node = offset(self.units[0]);
        let mut depth = 0;
        std::iter::from_fn(move || {
            while let Some(&byte) = bytes.get(depth) {
                if byte == 0 {
                    return None;
                }
                node ^= u32::from(byte);
                let unit = *self.units.get(node as usize)?;
                if unit & (1 << 31 | 0xff) != u32::from(byte) {
                    return None;
                }
                node ^= offset(unit);
                depth += 1;
                if unit >> 8 & 1 == 1 {
                    let leaf = *self.units.get(node as usize)?;
                    let rest = self.replacements.get((leaf & !(1 << 31)) as usize..)?;
                    return Some((depth, rest.split_once('\0')?.0));
                }
            }
            None
        })
    }
}

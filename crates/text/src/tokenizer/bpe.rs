//! [`Bpe`]: byte-pair encoding with a list of merges.
//!
//! Unlike in SentencePiece's variant, ranks come from merges of two tokens and not from the score of the result.
//! Invariant: tokens that are not text (control tokens and the like) are never made from text.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::{
    key_map::KeyMap,
    merge::{MergeTable, Merger, Symbol, Wholeness},
};

/// The symbols of a word before merging, and the treatment of symbols without a token.
#[derive(Clone, Debug)]
pub(crate) enum Alphabet {
    /// Bytes; the vocabulary's keys are raw bytes. `None` marks a byte without a token, which is dropped.
    Bytes(Box<[Option<u32>; 256]>),
    /// Characters; a character without a token becomes its bytes if all of them have tokens, else `unknown`.
    Characters {
        bytes: Option<Box<[Option<u32>; 256]>>,
        unknown: Option<u32>,
        /// Whether adjacent unknown characters become one token.
        fuses_unknown: bool,
    },
}

/// Byte-pair encoding.
#[derive(Debug)]
pub(crate) struct Bpe {
    keys: KeyMap,
    merges: Merges,
    alphabet: Alphabet,
    /// A word that is a token stays whole, whatever the merges say.
    ignores_merges: bool,
    wholeness: Wholeness,
}

/// `(left, right)` to rank and result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Merges(HashMap<u64, (u32, u32), RandomState>);

impl Merges {
    pub(crate) fn with_capacity(n_merges: usize) -> Self {
        Self(HashMap::with_capacity_and_hasher(
            n_merges,
            RandomState::default(),
        ))
    }

    /// Adds a merge; if two have the same parts, the first counts.
    pub(crate) fn insert(&mut self, left: u32, right: u32, rank: u32, merged: u32) {
        self.0.entry(Self::key(left, right)).or_insert((rank, merged));
    }

    /// Drops merges by their result.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(u32) -> bool) {
        self.0.retain(|_, (_, merged)| keeps(*merged));
    }

    fn key(left: u32, right: u32) -> u64 {
        u64::from(left) << 32 | u64::from(right)
    }
}

impl MergeTable for Merges {
    fn join(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        self.0.get(&Self::key(left.id, right.id)).copied()
    }
}

impl Bpe {
    /// Returns whether words that are tokens stay whole.
    pub(crate) fn ignores_merges(&self) -> bool {
        self.ignores_merges
    }

    pub(crate) fn new(
        keys: KeyMap,
        merges: Merges,
        alphabet: Alphabet,
        ignores_merges: bool,
        n_vocab: usize,
    ) -> Self {
        Self {
            keys,
            merges,
            alphabet,
            ignores_merges,
            wholeness: Wholeness::new(n_vocab),
        }
    }

    /// Appends the tokens of one word to `out`.
    pub(crate) fn encode(&self, word: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        match self.keys.get(word.as_bytes()) {
            Some(id) if self.ignores_merges => out.push(id),
            Some(id) => self
                .wholeness
                .encode(id, out, |out| self.merge(word, merger, out)),
            None => self.merge(word, merger, out),
        }
    }

    fn merge(&self, word: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        merger.clear();
        match &self.alphabet {
            Alphabet::Bytes(bytes) => {
                for (at, byte) in word.bytes().enumerate() {
                    if let Some(id) = bytes[byte as usize] {
                        merger.push(id, at, 1);
                    }
                }
            }
            Alphabet::Characters {
                bytes,
                unknown,
                fuses_unknown,
            } => {
                let mut was_unknown = false;
                for (at, character) in word.char_indices() {
                    let text = &word.as_bytes()[at..at + character.len_utf8()];
                    let mut is_unknown = false;
                    if let Some(id) = self.keys.get(text) {
                        merger.push(id, at, text.len());
                    } else if let Some(bytes) = bytes
                        && text.iter().all(|&byte| bytes[byte as usize].is_some())
                    {
                        for (offset, &byte) in text.iter().enumerate() {
                            let id = bytes[byte as usize].expect("all bytes were checked");
                            merger.push(id, at + offset, 1);
                        }
                    } else if let Some(unknown) = *unknown {
                        is_unknown = true;
                        if !(was_unknown && *fuses_unknown) {
                            merger.push(unknown, at, text.len());
                        }
                    }
                    was_unknown = is_unknown;
                }
            }
        }
        out.extend(merger.merge(&self.merges).map(|symbol| symbol.id));
    }
}

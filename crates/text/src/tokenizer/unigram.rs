//! [`Unigram`]: the likeliest segmentation under a unigram language model, as T5 uses it.
//!
//! It searches all segmentations (Viterbi). Invariant: time is linear in the text, with the bounded length of the longest
//! token as a factor.
//!
//! Source: Kudo 2018, "Subword Regularization"; scores and ties as in Hugging Face's `tokenizers`.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::TokenizerError;

/// A unigram language model.
#[derive(Debug)]
pub(crate) struct Unigram {
    trie: Trie,
    scores: Vec<f64>,
    unknown: Option<u32>,
    unknown_score: f64,
    /// Tokens of bytes, for characters in no token.
    bytes: Option<Box<[Option<u32>; 256]>>,
}

/// Longest token, in bytes. Trained tokens have 16 characters; at each position the search visits all tokens that begin there.
const MAX_TOKEN_BYTES: usize = 256;

/// Difference of an unknown character's score from that of the least likely token.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Byte strings to ids, walked byte by byte.
#[derive(Debug, Default)]
struct Trie {
    /// From node and byte, packed, to the next node.
    children: HashMap<u64, u32, RandomState>,
    ids: Vec<Option<u32>>,
}

fn edge(node: u32, byte: u8) -> u64 {
    u64::from(node) << 8 | u64::from(byte)
}

impl Trie {
    fn insert(&mut self, key: &[u8], id: u32) {
        if self.ids.is_empty() {
            self.ids.push(None);
        }
        let mut node = 0;
        for &byte in key {
            let next = self.ids.len() as u32;
            node = *self.children.entry(edge(node, byte)).or_insert(next);
            if node == next {
                self.ids.push(None);
            }
        }
        self.ids[node as usize].get_or_insert(id);
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        self.children.get(&edge(node, byte)).copied()
    }
}

/// The best way to a position in the text.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    start: usize,
    id: u32,
}

impl Unigram {
    /// `tokens`: text, id and score of every token that is text; `scores` are indexed by id.
    ///
    /// # Errors
    /// [`TokenizerError::LongToken`].
    pub(crate) fn new<'v>(
        tokens: impl Iterator<Item = (&'v [u8], u32)>,
        scores: Vec<f64>,
        min_score: f64,
        unknown: Option<u32>,
        bytes: Option<Box<[Option<u32>; 256]>>,
    ) -> Result<Self, TokenizerError> {
        let mut trie = Trie::default();
        for (key, id) in tokens {
            if key.len() > MAX_TOKEN_BYTES {
                return Err(TokenizerError::LongToken {
                    id,
                    n_bytes: key.len(),
                    maximum: MAX_TOKEN_BYTES,
                });
            }
            if !key.is_empty() {
                trie.insert(key, id);
            }
        }
        Ok(Self {
            trie,
            scores,
            unknown,
            unknown_score: min_score - UNKNOWN_PENALTY,
            bytes,
        })
    }

    /// Appends the tokens of `text` to `out`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        const UNREACHED: Best = Best {
            score: f64::NEG_INFINITY,
            start: usize::MAX,
            id: u32::MAX,
        };
        let bytes = text.as_bytes();
        let mut best = vec![UNREACHED; bytes.len() + 1];
        best[0].score = 0.0;
        for (start, character) in text.char_indices() {
            let score_here = best[start].score;
            let mut reach = |end: usize, id: u32, score: f64| {
                if best[end].start == usize::MAX || score_here + score > best[end].score {
                    best[end] = Best {
                        score: score_here + score,
                        start,
                        id,
                    };
                }
            };
            let char_end = start + character.len_utf8();
            let mut has_char_token = false;
            let mut node = 0;
            for (offset, &byte) in bytes[start..].iter().enumerate() {
                let Some(next) = self.trie.child(node, byte) else {
                    break;
                };
                node = next;
                if let Some(id) = self.trie.ids[node as usize] {
                    let end = start + offset + 1;
                    has_char_token |= end == char_end;
                    reach(end, id, self.scores[id as usize]);
                }
            }
            if !has_char_token {
                reach(char_end, u32::MAX, self.unknown_score);
            }
        }
        let first = out.len();
        let mut end = bytes.len();
        while end > 0 {
            let Best { start, id, .. } = best[end];
            if id == u32::MAX {
                end = self.push_unknown(&best, bytes, end, out);
            } else {
                out.push(id);
                end = start;
            }
        }
        out[first..].reverse();
    }

    /// Appends, backwards, the tokens of the unknown characters that end at `end`; returns where they start.
    fn push_unknown(&self, best: &[Best], bytes: &[u8], end: usize, out: &mut Vec<u32>) -> usize {
        let mut start = end;
        while start > 0 && best[start].id == u32::MAX {
            start = best[start].start;
        }
        let unknown = &bytes[start..end];
        match &self.bytes {
            Some(tokens) if unknown.iter().all(|&byte| tokens[byte as usize].is_some()) => {
                out.extend(unknown.iter().rev().filter_map(|&byte| tokens[byte as usize]));
            }
            _ => out.extend(self.unknown),
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_would_be_looked_at_for_long_is_refused() {
        let of = |n_bytes: usize| {
            let key = vec![b'a'; n_bytes];
            let tokens = [(&b"a"[..], 0), (&key[..], 1)];
            Unigram::new(tokens.into_iter(), vec![0.0, 1.0], 0.0, None, None)
        };
        let mut out = Vec::new();
        of(MAX_TOKEN_BYTES)
            .unwrap()
            .encode(&"a".repeat(MAX_TOKEN_BYTES), &mut out);
        assert_eq!(out, [1]);
        let refused = of(MAX_TOKEN_BYTES + 1).unwrap_err().to_string();
        assert_eq!(
            refused,
            "token 1 has 257 bytes; in a unigram vocabulary at most 256 are read"
        );
    }
}

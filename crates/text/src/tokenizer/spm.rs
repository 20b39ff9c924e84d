//! [`Spm`]: SentencePiece's byte-pair encoding, which merges by the score of the result.
//!
//! Such a file has no merges: any two adjacent symbols whose joined text is a token may merge. Invariant: only text
//! tokens are made from text.
//!
//! Source: `SentencePiece` `bpe_model.cc`, and llama.cpp's `llm_tokenizer_spm`.

use super::{
    key_map::KeyMap,
    merge::{MergeTable, Merger, Symbol, Wholeness},
};

/// SentencePiece's byte-pair encoding.
#[derive(Debug)]
pub(crate) struct Spm {
    keys: KeyMap,
    /// Ranks by token id, from scores: the best score has the least rank.
    ranks: Vec<u32>,
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    wholeness: Wholeness,
}

/// Returns a rank with the order of scores, the highest score first.
fn rank_of(score: f32) -> u32 {
    // Adding zero makes negative zero positive; the bits of floats then order like integers, negative ones backwards.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

struct Joins<'v> {
    spm: &'v Spm,
    text: &'v [u8],
}

impl MergeTable for Joins<'_> {
    fn join(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        let id = self.spm.keys.get(&self.text[left.start as usize..right.end()])?;
        Some((self.spm.ranks[id as usize], id))
    }
}

impl Spm {
    pub(crate) fn new(
        keys: KeyMap,
        scores: &[f32],
        bytes: Box<[Option<u32>; 256]>,
        unknown: Option<u32>,
    ) -> Self {
        Self {
            keys,
            ranks: scores.iter().map(|&score| rank_of(score)).collect(),
            bytes,
            unknown,
            wholeness: Wholeness::new(scores.len()),
        }
    }

    /// Appends the tokens of `text` to `out`.
    pub(crate) fn encode(&self, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        match self.keys.get(text.as_bytes()) {
            Some(id) => self
                .wholeness
                .encode(id, out, |out| self.merge(text, merger, out)),
            None => self.merge(text, merger, out),
        }
    }

    fn merge(&self, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        merger.clear();
        let bytes = text.as_bytes();
        for (at, character) in text.char_indices() {
            let n_bytes = character.len_utf8();
            let id = self.keys.get(&bytes[at..at + n_bytes]).unwrap_or(Symbol::UNKNOWN);
            merger.push(id, at, n_bytes);
        }
        for symbol in merger.merge(&Joins {
            spm: self,
            text: bytes,
        }) {
            if symbol.id != Symbol::UNKNOWN {
                out.push(symbol.id);
                continue;
            }
            let unknown = &bytes[symbol.start as usize..symbol.end()];
            if unknown.iter().all(|&byte| self.bytes[byte as usize].is_some()) {
                out.extend(unknown.iter().filter_map(|&byte| self.bytes[byte as usize]));
            } else {
                out.extend(self.unknown);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_backwards_to_scores() {
        let scores = [3.5, 0.0, -1e-9, -2.0, -1e30];
        assert!(scores.windows(2).all(|pair| rank_of(pair[0]) < rank_of(pair[1])));
        assert_eq!(rank_of(0.0), rank_of(-0.0));
    }
}

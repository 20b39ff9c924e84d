//! [`Vocab`]: the bytes and the kind of each token id.
//!
//! Decoding needs nothing else. Invariant: every id below [`Vocab::len`] has bytes (perhaps none) and a kind, and every
//! special id is below it.

use std::collections::HashSet;

use crate::TokenizerError;

/// Classifies a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenKind {
    /// Text.
    Normal,
    /// Stands for text that no token covers.
    Unknown,
    /// Structure, such as a turn's end; text never becomes it unless special tokens are parsed.
    Control,
    /// Text that is always one token, whatever the model says.
    UserDefined,
    /// Not used.
    Unused,
    /// One byte of a character that no token covers.
    Byte,
}

impl TokenKind {
    /// Returns whether the token is structure rather than text.
    pub fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }

    /// Reads the number that GGUF files use.
    pub(crate) fn from_gguf(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// Ids of tokens with a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpecialIds {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unknown: Option<u32>,
    pub(crate) separator: Option<u32>,
    pub(crate) padding: Option<u32>,
    /// Tokens that end a generation, ascending.
    pub(crate) end_of_generation: Vec<u32>,
    pub(crate) infill: InfillIds,
}

/// Holds the tokens for filling in the middle, if the file names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InfillIds {
    /// Comes before the prefix.
    pub prefix: Option<u32>,
    /// Comes before the suffix.
    pub suffix: Option<u32>,
    /// Comes before the middle.
    pub middle: Option<u32>,
    /// Comes before the name of a repository.
    pub repository: Option<u32>,
    /// Comes before the name of a file.
    pub file: Option<u32>,
}

/// Texts that end a generation, in whichever model has them.
///
/// Source: llama.cpp `src/llama-vocab.cpp`.
pub(super) const END_MARKS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // Ends of a file or repository in code models.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Holds the bytes and the kind of each token id.
#[derive(Clone, Debug)]
pub(crate) struct Vocab {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    pub(crate) special: SpecialIds,
    /// Whether decoded text loses a space at its very start, which encoding put there.
    pub(crate) strips_leading_space: bool,
}

impl Vocab {
    /// Collects the tokens' bytes and kinds.
    pub(crate) fn new(
        tokens: impl Iterator<Item = (impl AsRef<[u8]>, TokenKind)>,
    ) -> Result<Self, TokenizerError> {
        let mut vocab = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
            kinds: Vec::new(),
            special: SpecialIds::default(),
            strips_leading_space: false,
        };
        for (bytes, kind) in tokens {
            vocab.bytes.extend_from_slice(bytes.as_ref());
            vocab.ends.push(vocab.bytes.len() as u32);
            vocab.kinds.push(kind);
        }
        if vocab.ends.is_empty() {
            return Err(TokenizerError::EmptyVocabulary);
        }
        if u32::try_from(vocab.bytes.len()).is_err() || i32::try_from(vocab.ends.len()).is_err() {
            return Err(TokenizerError::TooLarge {
                n_tokens: vocab.ends.len(),
                n_bytes: vocab.bytes.len(),
            });
        }
        Ok(vocab)
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the bytes of a token; `None` outside the vocabulary.
    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let idx = id as usize;
        let end = *self.ends.get(idx)? as usize;
        let start = idx.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(&self.bytes[start..end])
    }

    /// Returns the kind of a token; `None` outside the vocabulary.
    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// Finds the tokens that end a generation: `eos`, and tokens with such a text.
    ///
    /// Source: llama.cpp `src/llama-vocab.cpp`. Unlike there, a normal token whose text might occur in any text (`</s>`
    /// is HTML) does not count.
    pub(crate) fn find_end_of_generation(&mut self) {
        let marks: HashSet<&[u8]> = END_MARKS.iter().map(|mark| mark.as_bytes()).collect();
        let found: Vec<(&[u8], u32)> = (0..self.len() as u32)
            .filter_map(|id| Some((*marks.get(self.bytes(id)?)?, id)))
            .filter(|&(mark, id)| {
                let is_text = matches!(self.kind(id), Some(TokenKind::Normal | TokenKind::Unused));
                !is_text || mark.starts_with(b"<|")
            })
            .collect();
        let has = |mark: &str| found.iter().any(|(found, _)| *found == mark.as_bytes());
        // Where messages end in `<|return|>` or `<|call|>`, `<|end|>` ends only a part of one.
        let end_is_inner = (has("<|return|>") && has("<|call|>"))
            || (has("<|flush|>") && (has("<|calls|>") || has("<|call|>")));
        let has_tool_response = has("<|tool_response>");
        let mut ids: Vec<u32> = found
            .iter()
            .filter(|(mark, _)| !(end_is_inner && *mark == b"<|end|>"))
            .filter(|(mark, _)| !(has_tool_response && *mark == b"</s>"))
            .map(|&(_, id)| id)
            .chain(self.special.eos)
            .chain(self.special.end_of_generation.iter().copied())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        self.special.end_of_generation = ids;
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_gguf::{Metadata, StringArray};

    use super::*;
    use crate::{EncodeOptions, Tokenizer};

    fn check(tokens: &[(&str, TokenKind)], expected: &[u32]) {
        let mut vocab = Vocab::new(tokens.iter().copied()).unwrap();
        vocab.find_end_of_generation();
        assert_eq!(vocab.special.end_of_generation, expected);
    }

    #[test]
    fn text_that_looks_like_an_end_is_none() {
        use TokenKind::{Control, Normal};
        check(&[("</s>", Normal), ("<|im_end|>", Normal), ("a", Normal)], &[1]);
        check(&[("</s>", Control), ("<|end|>", Control)], &[0, 1]);
    }

    #[test]
    fn the_end_of_a_part_does_not_end_a_message() {
        use TokenKind::Control;
        check(
            &[
                ("<|end|>", Control),
                ("<|return|>", Control),
                ("<|call|>", Control),
            ],
            &[1, 2],
        );
    }

    /// Ends that a file calls user-defined are still not found in text that may not hold control tokens.
    #[test]
    fn ends_of_generation_are_control_tokens() {
        let tokens = [
            "a",
            "<",
            "<|im_end|>",
            "<stop>",
            "<|eom_id|>",
            "<call>",
            "<|eot_id|>",
        ];
        let mut metadata = Metadata::new();
        metadata.insert("tokenizer.ggml.model", "gpt2").unwrap();
        metadata.insert("tokenizer.ggml.pre", "gpt-2").unwrap();
        metadata
            .insert("tokenizer.ggml.tokens", StringArray::from_iter(tokens))
            .unwrap();
        metadata
            .insert("tokenizer.ggml.token_type", vec![1, 1, 4, 4, 3, 4, 1])
            .unwrap();
        metadata
            .insert("tokenizer.ggml.merges", StringArray::from_iter(["a b"; 0]))
            .unwrap();
        metadata.insert("tokenizer.ggml.eos_token_id", 3_u32).unwrap();
        let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
        let kinds: Vec<TokenKind> = (0..7).map(|id| tokenizer.token_kind(id).unwrap()).collect();
        // Found by its text, by its id, as the file says, left as text, and found by its text though it is called normal.
        assert_eq!(kinds[2..5], [TokenKind::Control; 3]);
        assert_eq!(kinds[5..], [TokenKind::UserDefined, TokenKind::Control]);
        assert_eq!(tokenizer.end_of_generation(), [2, 3, 4, 6]);
        let encode = |text, parse_special| {
            let options = EncodeOptions {
                add_special: false,
                parse_special,
            };
            tokenizer.encode(text, options)
        };
        for (id, text) in [
            (2, "a<|im_end|>"),
            (3, "a<stop>"),
            (4, "a<|eom_id|>"),
            (6, "a<|eot_id|>"),
        ] {
            assert!(!encode(text, false).contains(&id), "{text}");
            assert_eq!(encode(text, true), [0, id]);
        }
        assert_eq!(encode("a<call>", false), [0, 5]);
    }
}

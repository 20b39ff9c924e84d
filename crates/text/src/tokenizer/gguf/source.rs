//! [`Source`]: the vocabulary of a GGUF file before a tokenizer is made of it.
//!
//! The readers of all tokenizer models begin with it. Invariant: the arrays have one length, and every
//! returned id is below it.

use std::collections::HashMap;

use tokenmill_gguf::{Metadata, StringArray};

use crate::{
    TokenizerError,
    tokenizer::{
        byte_level,
        key_map::KeyMap,
        split::METASPACE,
        vocab::{END_MARKS, InfillIds, TokenKind},
    },
};

use super::{EOM, EOS, EOT};

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";
/// Keys of the tokens for filling in the middle, the newer ones first. Source: llama.cpp `src/llama-arch.cpp`.
const INFILL_PREFIX: [&str; 2] = [
    "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.prefix_token_id",
];
const INFILL_SUFFIX: [&str; 2] = [
    "tokenizer.ggml.fim_suf_token_id",
    "tokenizer.ggml.suffix_token_id",
];
const INFILL_MIDDLE: [&str; 2] = [
    "tokenizer.ggml.fim_mid_token_id",
    "tokenizer.ggml.middle_token_id",
];
const INFILL_REPOSITORY: [&str; 1] = ["tokenizer.ggml.fim_rep_token_id"];
const INFILL_FILE: [&str; 1] = ["tokenizer.ggml.fim_sep_token_id"];

/// The vocabulary in the form of the file.
pub(super) struct Source<'m> {
    pub(super) metadata: &'m Metadata,
    pub(super) tokens: &'m StringArray,
    pub(super) kinds: Vec<TokenKind>,
    /// Text to id, of tokens that have text.
    pub(super) by_text: HashMap<&'m str, u32, foldhash::fast::RandomState>,
}

impl<'m> Source<'m> {
    pub(super) fn new(metadata: &'m Metadata) -> Result<Self, TokenizerError> {
        let tokens = metadata.string_array(TOKENS)?;
        let mut kinds: Vec<TokenKind> = match metadata.opt_i32_array(KINDS)? {
            Some(numbers) => {
                check_len(KINDS, numbers.len(), tokens.len())?;
                numbers
                    .iter()
                    .map(|&number| TokenKind::from_gguf(number))
                    .collect()
            }
            None => vec![TokenKind::Normal; tokens.len()],
        };
        let mut by_text =
            HashMap::with_capacity_and_hasher(tokens.len(), foldhash::fast::RandomState::default());
        for (id, text) in (0..).zip(tokens.iter()) {
            if text.is_empty() {
                continue;
            }
            if let Some(first) = by_text.insert(text, id) {
                return Err(TokenizerError::DuplicateToken {
                    text: text.to_owned(),
                    first,
                    second: id,
                });
            }
        }
        let mut ends: Vec<(u32, bool)> = END_MARKS
            .iter()
            .filter_map(|mark| Some((*by_text.get(mark)?, mark.starts_with("<|"))))
            .collect();
        for key in [EOS, EOT, EOM] {
            ends.extend(id_of(metadata, key, tokens.len())?.map(|id| (id, false)));
        }
        for (id, is_no_text) in ends {
            // Converters mark some end tokens as user-defined, so text would be matched against them, and a message with `<|im_end|>`
            // in it would end there. Others, such as Aquila's `<|endoftext|>`, are marked as normal, and no merge makes them.
            // llama.cpp turns both into control tokens too. `</s>` may be HTML and stays normal.
            match kinds.get_mut(id as usize) {
                Some(kind @ TokenKind::UserDefined) => *kind = TokenKind::Control,
                Some(kind @ (TokenKind::Normal | TokenKind::Unused)) if is_no_text => {
                    *kind = TokenKind::Control;
                }
                _ => {}
            }
        }
        Ok(Self {
            metadata,
            tokens,
            kinds,
            by_text,
        })
    }

    /// Lists ids, texts and kinds of all tokens.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &'m str, TokenKind)> {
        (0..)
            .zip(self.tokens.iter())
            .zip(&self.kinds)
            .map(|((id, text), &kind)| (id, text, kind))
    }

    /// Returns the tokens of single bytes, and the text of each such token.
    pub(super) fn byte_tokens(&self) -> Result<Box<[Option<u32>; 256]>, TokenizerError> {
        let mut bytes = Box::new([None; 256]);
        for (id, text, kind) in self.iter() {
            if kind == TokenKind::Byte {
                bytes[byte_of(id, text)? as usize] = Some(id);
            }
        }
        Ok(bytes)
    }

    /// Returns the keys of the tokens that may be made from text.
    pub(super) fn text_keys(&self) -> KeyMap {
        let mut keys = KeyMap::with_capacity(self.tokens.len());
        for (id, text, kind) in self.iter() {
            if is_text(kind) && !text.is_empty() {
                keys.insert(text.as_bytes(), id);
            }
        }
        keys
    }

    /// Returns each token's decoded text, with `▁` as a space and byte tokens as bytes.
    pub(super) fn metaspace_pieces(&self) -> Result<Vec<Vec<u8>>, TokenizerError> {
        self.iter()
            .map(|(id, text, kind)| {
                Ok(match kind {
                    TokenKind::Byte => vec![byte_of(id, text)?],
                    TokenKind::Normal | TokenKind::Unused => text.replace(METASPACE, " ").into_bytes(),
                    _ => text.as_bytes().to_vec(),
                })
            })
            .collect()
    }

    pub(super) fn scores(&self) -> Result<Vec<f32>, TokenizerError> {
        let scores = match self.metadata.get(SCORES) {
            None => vec![0.0; self.tokens.len()],
            Some(tokenmill_gguf::Value::Array(tokenmill_gguf::Array::I32(scores))) => {
                scores.iter().map(|&score| score as f32).collect()
            }
            Some(_) => self.metadata.f32_array(SCORES)?.to_vec(),
        };
        check_len(SCORES, scores.len(), self.tokens.len())?;
        match (0..).zip(&scores).find(|(_, score)| !score.is_finite()) {
            Some((id, &score)) => Err(TokenizerError::Score {
                id,
                score: f64::from(score),
            }),
            None => Ok(scores),
        }
    }

    /// Returns the id that a key names, or the default if the vocabulary has it.
    pub(super) fn special(
        &self,
        key: &'static str,
        default: Option<u32>,
    ) -> Result<Option<u32>, TokenizerError> {
        let n_vocab = self.tokens.len();
        let named = id_of(self.metadata, key, n_vocab)?;
        Ok(named.or_else(|| default.filter(|&id| (id as usize) < n_vocab)))
    }
}

/// Returns the id that a key names. Writers use an id outside the vocabulary, such as -1, for no token; llama.cpp ignores those, too.
fn id_of(metadata: &Metadata, key: &'static str, n_vocab: usize) -> Result<Option<u32>, TokenizerError> {
    let number = metadata.get(key).and_then(tokenmill_gguf::Value::as_integer);
    if number.is_some_and(|id| id < 0) {
        return Ok(None);
    }
    Ok(metadata.opt_u32(key)?.filter(|&id| (id as usize) < n_vocab))
}

/// Reads the tokens for filling in the middle; ids outside the vocabulary are ignored.
pub(super) fn infill_ids(source: &Source<'_>) -> InfillIds {
    let find = |keys: &[&'static str]| {
        keys.iter()
            .find_map(|key| id_of(source.metadata, key, source.tokens.len()).ok().flatten())
    };
    InfillIds {
        prefix: find(&INFILL_PREFIX),
        suffix: find(&INFILL_SUFFIX),
        middle: find(&INFILL_MIDDLE),
        repository: find(&INFILL_REPOSITORY),
        file: find(&INFILL_FILE),
    }
}

fn check_len(key: &'static str, found: usize, expected: usize) -> Result<(), TokenizerError> {
    if found == expected {
        Ok(())
    } else {
        Err(TokenizerError::Length { key, expected, found })
    }
}

pub(super) fn byte_of(id: u32, text: &str) -> Result<u8, TokenizerError> {
    byte_level::byte_of_token(text).ok_or_else(|| TokenizerError::ByteToken {
        id,
        text: text.to_owned(),
    })
}

/// Returns whether tokens of this kind may be made from text.
pub(super) fn is_text(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Normal | TokenKind::UserDefined)
}

//! [`Vocabulary`]: the tokens of a model as `llguidance` needs them, a trie of their bytes.
//!
//! It is made once for each model. Invariants: no token in the trie is structure; no two have the same bytes; the last id,
//! beyond the tokenizer's own, is the end of a text.

use std::{collections::HashMap, sync::Arc};

use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::{
    controls::{ControlTokens, Segment},
    error::ConstraintError,
    escape_tokens::EscapeTokens,
};
use crate::{TokenKind, Tokenizer};

/// Longest token of the trie; a longer one is never chosen.
const MAX_TOKEN_BYTES: usize = 1000;

/// Most bytes of all tokens: the trie counts its nodes in 22 bits.
const MAX_TRIE_BYTES: usize = (1 << 22) - (1 << 10);

/// Begins a token that is not text; the byte is invalid in UTF-8.
const NO_TEXT: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

pub(super) struct Vocabulary {
    pub(super) env: TokEnv,
    /// Number of tokens of the tokenizer. This id is the end of a text.
    pub(super) n_tokens: usize,
    /// The bytes of every token in the text, including structure, for markers.
    bytes: Vec<Box<[u8]>>,
    controls: ControlTokens,
    /// Tokens that contain JSON escapes.
    pub(super) escapes: EscapeTokens,
}

impl Vocabulary {
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Self, ConstraintError> {
        let n_tokens = tokenizer.n_vocab();
        let refused = |reason: String| ConstraintError::Vocabulary { reason };
        let mut words: Vec<Vec<u8>> = Vec::with_capacity(n_tokens + 1);
        let mut by_bytes: HashMap<&[u8], usize> = HashMap::with_capacity(n_tokens);
        let mut n_bytes = 0;
        for id in 0..n_tokens {
            let bytes = tokenizer.token_bytes(id as u32).unwrap_or_default();
            let kind = tokenizer.token_kind(id as u32).unwrap_or(TokenKind::Unused);
            let is_usable = !bytes.is_empty() && bytes.len() < MAX_TOKEN_BYTES && bytes[0] != NO_TEXT;
            let word = match kind {
                _ if !is_usable => Vec::new(),
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte => {
                    match by_bytes.get(bytes) {
                        None => {
                            by_bytes.insert(bytes, id);
                            bytes.to_vec()
                        }
                        // A byte token gives way to a text token, which the model knows better.
                        Some(&other) if tokenizer.token_kind(other as u32) == Some(TokenKind::Byte) => {
                            by_bytes.insert(bytes, id);
                            std::mem::take(&mut words[other])
                        }
                        Some(_) => Vec::new(),
                    }
                }
                TokenKind::Control => [&[NO_TEXT], bytes].concat(),
                TokenKind::Unknown | TokenKind::Unused => Vec::new(),
            };
            n_bytes += word.len();
            words.push(word);
        }
        if n_bytes > MAX_TRIE_BYTES {
            return Err(refused(format!(
                "its tokens have {n_bytes} bytes, the limit is {MAX_TRIE_BYTES}"
            )));
        }
        if by_bytes.is_empty() {
            return Err(refused("no token of it is text".to_owned()));
        }
        words.push([&[NO_TEXT], &b"<|end of the constrained text|>"[..]].concat());
        let info = TokRxInfo::new(words.len() as u32, n_tokens as u32);
        let bytes = (0..n_tokens as u32).map(|id| tokenizer.token_bytes(id).unwrap_or_default().into());
        let trie = TokTrie::from(&info, &words);
        let texts = (0..)
            .zip(&words)
            .filter(|(_, word)| word.first().is_some_and(|&byte| byte != NO_TEXT));
        let escapes = EscapeTokens::new(texts.map(|(id, word)| (id, word.as_slice())), &trie);
        Ok(Self {
            escapes,
            env: Arc::new(ApproximateTokEnv::new(trie)),
            n_tokens,
            bytes: bytes.collect(),
            controls: ControlTokens::of(tokenizer),
        })
    }

    /// Returns a text in the tokens of the model: control tokens where it names them, otherwise the longest tokens.
    pub(super) fn tokens_of(&self, text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        for segment in self.controls.split(text) {
            match segment {
                Segment::Control(id) => tokens.push(id),
                Segment::Text(text) => tokens.extend(self.text_tokens(text.as_bytes())),
            }
        }
        tokens
    }

    /// Returns the longest tokens of a text without structure.
    pub(super) fn text_tokens(&self, text: &[u8]) -> Vec<u32> {
        self.env.tok_trie().greedy_tokenize(text)
    }

    /// Returns the longest tokens of a text without structure; `None` if the vocabulary lacks some of its bytes.
    pub(super) fn spelled(&self, text: &[u8]) -> Option<Vec<u32>> {
        spelled(self.env.tok_trie(), text)
    }

    /// Lists the text tokens with which a text that begins with `word` may begin.
    pub(super) fn ids_at_the_start_of(&self, word: &[u8]) -> Vec<u32> {
        if word.is_empty() {
            return Vec::new();
        }
        let tokens = (0..).zip(&self.bytes);
        tokens
            .filter(|(_, token)| !token.is_empty() && (token.starts_with(word) || word.starts_with(token)))
            .map(|(id, _)| id)
            .collect()
    }

    /// Lists the tokens with the text `bytes`, including structure.
    pub(super) fn ids_of(&self, bytes: &[u8]) -> Vec<u32> {
        let tokens = (0..).zip(&self.bytes);
        tokens
            .filter(|(_, token)| ***token == *bytes)
            .map(|(id, _)| id)
            .collect()
    }

    /// Returns whether a token is text, not a control token.
    pub(super) fn is_text(&self, id: u32) -> bool {
        let token = self.env.tok_trie().token(id);
        token.first().is_some_and(|&byte| byte != NO_TEXT)
    }

    /// Returns the bytes of a token; none outside the vocabulary.
    pub(super) fn bytes_of(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }
}

/// Returns the longest tokens of a text without structure; `None` if the trie lacks some of its bytes.
pub(super) fn spelled(trie: &TokTrie, text: &[u8]) -> Option<Vec<u32>> {
    let ids = trie.greedy_tokenize(text);
    let n_bytes: usize = ids.iter().map(|&id| trie.token(id).len()).sum();
    (n_bytes == text.len()).then_some(ids)
}

//! [`StreamDecoder`]: token ids to text, one token at a time.
//!
//! It holds the state, which is the bytes of an unfinished character. Invariant: the returned texts together are
//! the text of all ids decoded at once; no character is ever cut.

use std::{borrow::Borrow, sync::Arc};

use crate::Tokenizer;

/// Options of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Omits control tokens; otherwise their names are part of the text.
    pub skip_special: bool,
    /// The ids continue a text (as an answer continues a prompt), so a space at their start is kept.
    pub is_continuation: bool,
}

impl Default for DecodeOptions {
    /// For a text from its start, without control tokens.
    fn default() -> Self {
        Self {
            skip_special: true,
            is_continuation: false,
        }
    }
}

/// Turns token ids into text one at a time.
///
/// `T` holds the tokenizer: `&Tokenizer`, `Arc<Tokenizer>`, or any other type that lends one.
///
/// A character of several tokens is returned with the last of them. Invalid bytes are returned as U+FFFD as soon as
/// that is certain, at the latest from [`Self::finish`].
#[derive(Clone, Debug)]
pub struct StreamDecoder<T> {
    tokenizer: T,
    options: DecodeOptions,
    /// Control tokens that are part of the text, ascending.
    shown: Arc<[u32]>,
    is_at_start: bool,
    /// The bytes of an unfinished character.
    pending: Vec<u8>,
    text: String,
}

impl Tokenizer {
    /// Decodes token ids; ids outside the vocabulary have no text.
    ///
    /// Bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions) -> String {
        let mut decoder = StreamDecoder::new(self, options);
        let mut text = String::new();
        for &id in ids {
            text.push_str(decoder.push(id));
        }
        text.push_str(decoder.finish());
        text
    }
}

impl<T: Borrow<Tokenizer>> StreamDecoder<T> {
    /// Begins a text.
    pub fn new(tokenizer: T, options: DecodeOptions) -> Self {
        Self {
            is_at_start: !options.is_continuation,
            tokenizer,
            options,
            shown: Arc::default(),
            pending: Vec::new(),
            text: String::new(),
        }
    }

    /// Makes some control tokens part of a text that otherwise omits them; `ids` ascend.
    #[must_use]
    pub fn showing(mut self, ids: Arc<[u32]>) -> Self {
        self.shown = ids;
        self
    }

    /// Takes the next token and returns the text that it completes, often none.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        let tokenizer = self.tokenizer.borrow();
        let is_shown = tokenizer
            .token_kind(id)
            .is_some_and(|kind| !(self.options.skip_special && kind.is_special()))
            || self.shown.binary_search(&id).is_ok();
        let mut bytes = match tokenizer.token_bytes(id) {
            Some(bytes) if is_shown => bytes,
            _ => return "",
        };
        if self.is_at_start && !bytes.is_empty() {
            self.is_at_start = false;
            if tokenizer.strips_leading_space() {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        if self.pending.is_empty() {
            let n_done = append_whole(bytes, &mut self.text);
            self.pending.extend_from_slice(&bytes[n_done..]);
        } else {
            self.pending.extend_from_slice(bytes);
            let n_done = append_whole(&self.pending, &mut self.text);
            self.pending.drain(..n_done);
        }
        &self.text
    }

    /// Ends the text: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

/// Appends `bytes` to `text`, up to a character that may still be finished; returns the number of appended bytes.
fn append_whole(bytes: &[u8], text: &mut String) -> usize {
    let mut n_done = 0;
    while n_done < bytes.len() {
        match std::str::from_utf8(&bytes[n_done..]) {
            Ok(rest) => {
                text.push_str(rest);
                return bytes.len();
            }
            Err(error) => {
                let (valid, _) = bytes[n_done..].split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(valid).expect("it was found valid"));
                n_done += valid.len();
                let Some(n_invalid) = error.error_len() else {
                    return n_done;
                };
                text.push(char::REPLACEMENT_CHARACTER);
                n_done += n_invalid;
            }
        }
    }
    n_done
}

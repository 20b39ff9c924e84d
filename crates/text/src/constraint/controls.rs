//! [`ControlTokens`]: the tokens of a vocabulary that are structure, such as `<|im_end|>`, by their text.
//!
//! Grammars name them before anything is compiled. Invariant: if two begin a text, the longer one counts.

use crate::{TokenKind, Tokenizer};

/// The control tokens of a vocabulary.
#[derive(Clone, Debug)]
pub struct ControlTokens {
    /// The longest first.
    tokens: Vec<(String, u32)>,
    /// Whether a byte begins a control token.
    begins: [bool; 256],
}

impl Default for ControlTokens {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment<'t> {
    /// Text.
    Text(&'t str),
    /// A control token, written as its text.
    Control(u32),
}

impl ControlTokens {
    fn new(tokens: Vec<(String, u32)>) -> Self {
        let mut begins = [false; 256];
        for (text, _) in &tokens {
            if let Some(&byte) = text.as_bytes().first() {
                begins[usize::from(byte)] = true;
            }
        }
        Self { tokens, begins }
    }

    /// Returns the control tokens of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let mut tokens: Vec<(String, u32)> = (0..tokenizer.n_vocab() as u32)
            .filter(|&id| tokenizer.token_kind(id) == Some(TokenKind::Control))
            .filter_map(|id| {
                Some((
                    std::str::from_utf8(tokenizer.token_bytes(id)?).ok()?.to_owned(),
                    id,
                ))
            })
            .filter(|(text, _)| !text.is_empty())
            .collect();
        tokens.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
        Self::new(tokens)
    }

    /// Returns whether a text contains no control token.
    pub(crate) fn is_text(&self, text: &str) -> bool {
        matches!(self.split(text)[..], [] | [Segment::Text(_)])
    }

    /// Splits a text into its parts, from its beginning.
    pub(crate) fn split<'t>(&self, text: &'t str) -> Vec<Segment<'t>> {
        let mut segments = Vec::new();
        let mut rest = text;
        let mut n_text = 0;
        while let Some(c) = rest[n_text..].chars().next() {
            let here = &rest[n_text..];
            let may_begin = self.begins[usize::from(here.as_bytes()[0])];
            let tokens = if may_begin { &self.tokens[..] } else { &[] };
            match tokens.iter().find(|(token, _)| here.starts_with(token.as_str())) {
                Some((token, id)) => {
                    if n_text > 0 {
                        segments.push(Segment::Text(&rest[..n_text]));
                    }
                    segments.push(Segment::Control(*id));
                    rest = &here[token.len()..];
                    n_text = 0;
                }
                None => n_text += c.len_utf8(),
            }
        }
        if !rest.is_empty() {
            segments.push(Segment::Text(rest));
        }
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_token_is_meant() {
        let controls = ControlTokens::new(vec![("<a><b>".to_owned(), 2), ("<a>".to_owned(), 1)]);
        assert_eq!(
            controls.split("x<a>y<a><b>"),
            [
                Segment::Text("x"),
                Segment::Control(1),
                Segment::Text("y"),
                Segment::Control(2)
            ]
        );
        assert_eq!(controls.split(""), []);
    }
}

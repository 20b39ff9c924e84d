//! [`AddedTokens`]: tokens that are found in text before any other step.
//!
//! This decides whether user text can become a control token. Invariant: without `parse_special` it looks
//! only for tokens that are text.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::TokenizerError;

/// One token to look for.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent flags of the file format"
)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) text: String,
    /// Whether it is found only if special tokens are parsed.
    pub(crate) is_special: bool,
    /// Whether the white space before it belongs to it.
    pub(crate) strips_left: bool,
    /// Whether the white space after it belongs to it.
    pub(crate) strips_right: bool,
    /// Found only between non-word characters.
    pub(crate) is_single_word: bool,
}

impl AddedToken {
    pub(crate) fn new(id: u32, text: &str, is_special: bool) -> Self {
        Self {
            id,
            text: text.to_owned(),
            is_special,
            strips_left: false,
            strips_right: false,
            is_single_word: false,
        }
    }
}

/// A stretch of text, or a token found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment<'t> {
    Text(&'t str),
    Token(u32),
}

/// Finds added tokens in text.
#[derive(Clone, Debug)]
pub(crate) struct AddedTokens {
    /// With special tokens.
    all: Matcher,
    /// Without.
    text_only: Matcher,
}

#[derive(Clone, Debug)]
struct Matcher {
    tokens: Vec<AddedToken>,
    automaton: Option<AhoCorasick>,
}

impl AddedTokens {
    /// Builds the matchers; tokens without text are ignored.
    pub(crate) fn new(tokens: Vec<AddedToken>) -> Result<Self, TokenizerError> {
        let text_only = tokens.iter().filter(|token| !token.is_special).cloned().collect();
        Ok(Self {
            all: Matcher::new(tokens)?,
            text_only: Matcher::new(text_only)?,
        })
    }

    /// Calls `emit` with the tokens of `text` and the text between them, in order.
    pub(crate) fn split<'t>(&self, text: &'t str, parse_special: bool, emit: &mut dyn FnMut(Segment<'t>)) {
        let matcher = if parse_special { &self.all } else { &self.text_only };
        matcher.split(text, emit);
    }

    /// Returns the id of the special token with this text.
    pub(crate) fn id_of(&self, text: &str) -> Option<u32> {
        self.all
            .tokens
            .iter()
            .find(|token| token.text == text)
            .map(|token| token.id)
    }
}

impl Matcher {
    fn new(mut tokens: Vec<AddedToken>) -> Result<Self, TokenizerError> {
        tokens.retain(|token| !token.text.is_empty());
        if tokens.is_empty() {
            return Ok(Self {
                tokens,
                automaton: None,
            });
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(tokens.iter().map(|token| &token.text))
            .map_err(|error| TokenizerError::AddedTokens {
                n_tokens: tokens.len(),
                source: Box::new(error),
            })?;
        Ok(Self {
            tokens,
            automaton: Some(automaton),
        })
    }

    fn split<'t>(&self, text: &'t str, emit: &mut dyn FnMut(Segment<'t>)) {
        let mut done = 0;
        for found in self
            .automaton
            .iter()
            .flat_map(|automaton| automaton.find_iter(text))
        {
            let token = &self.tokens[found.pattern()];
            let (mut start, mut end) = (found.start(), found.end());
            let touches_word = || text[..start].ends_with(is_word) || text[end..].starts_with(is_word);
            if start < done || (token.is_single_word && touches_word()) {
                continue;
            }
            if token.strips_left {
                start = text[..start].trim_end().len().max(done);
            }
            if token.strips_right {
                end = text.len() - text[end..].trim_start().len();
            }
            if start > done {
                emit(Segment::Text(&text[done..start]));
            }
            emit(Segment::Token(token.id));
            done = end;
        }
        if done < text.len() {
            emit(Segment::Text(&text[done..]));
        }
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tokens: Vec<AddedToken>, parse_special: bool, text: &str, expected: &[Segment<'_>]) {
        let added = AddedTokens::new(tokens).unwrap();
        let mut segments = Vec::new();
        added.split(text, parse_special, &mut |segment| segments.push(segment));
        assert_eq!(segments, expected);
    }

    #[test]
    fn special_tokens_are_text_unless_parsed() {
        let tokens = vec![AddedToken::new(7, "<s>", true), AddedToken::new(8, "  ", false)];
        let (text, token) = (Segment::Text, Segment::Token);
        check(
            tokens.clone(),
            false,
            "a<s>  b",
            &[text("a<s>"), token(8), text("b")],
        );
        check(
            tokens,
            true,
            "a<s>  b",
            &[text("a"), token(7), token(8), text("b")],
        );
    }

    #[test]
    fn longest_token_wins() {
        let tokens = vec![AddedToken::new(1, "<a", false), AddedToken::new(2, "<a>", false)];
        check(tokens, false, "<a><a", &[Segment::Token(2), Segment::Token(1)]);
    }

    #[test]
    fn stripping_tokens_take_white_space_along() {
        let token = AddedToken {
            strips_left: true,
            strips_right: true,
            ..AddedToken::new(1, "<m>", true)
        };
        check(
            vec![token],
            true,
            "a \n<m> \t<m> b",
            &[
                Segment::Text("a"),
                Segment::Token(1),
                Segment::Token(1),
                Segment::Text("b"),
            ],
        );
    }

    #[test]
    fn single_words_stand_alone() {
        let token = AddedToken {
            is_single_word: true,
            ..AddedToken::new(1, "go", false)
        };
        check(
            vec![token],
            false,
            "go gone",
            &[Segment::Token(1), Segment::Text(" gone")],
        );
    }
}

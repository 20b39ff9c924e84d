//! Splits PTX text into words, symbols and strings, each with its line, and drops comments.
//!
//! A word is a maximal run of letters, digits and `_ $ % .`, in which `::` may occur (`L1::no_allocate`); so a mnemonic
//! with its modifiers is one word.

use std::fmt;

use crate::LoadError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Symbol(char),
    Text(&'a str),
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "`{word}`"),
            Self::Symbol(symbol) => write!(f, "`{symbol}`"),
            Self::Text(text) => write!(f, "\"{text}\""),
        }
    }
}

pub(super) struct Lexer<'a> {
    rest: &'a str,
    line: u32,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text, line: 1 }
    }

    pub(super) fn tokens(mut self) -> Result<Vec<(Token<'a>, u32)>, LoadError> {
        let mut tokens = Vec::new();
        loop {
            self.skip_blank()?;
            let Some(first) = self.rest.chars().next() else {
                return Ok(tokens);
            };
            let line = self.line;
            let token = if is_word(first) {
                Token::Word(self.take_word())
            } else if first == '"' {
                let Some(end) = self.rest[1..].find('"') else {
                    return Err(self.error("a closing quotation mark"));
                };
                Token::Text(self.take(end + 2).trim_matches('"'))
            } else if first.is_ascii() {
                self.take(1);
                Token::Symbol(first)
            } else {
                return Err(self.error("ASCII text"));
            };
            tokens.push((token, line));
        }
    }

    fn error(&self, expected: &str) -> LoadError {
        LoadError::Syntax {
            line: self.line,
            expected: expected.to_owned(),
            found: self.rest.chars().take(20).collect(),
        }
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count() as u32;
        self.rest = rest;
        taken
    }

    fn take_word(&mut self) -> &'a str {
        let mut end = 0;
        loop {
            end += self.rest[end..]
                .find(|c: char| !is_word(c))
                .unwrap_or(self.rest.len() - end);
            let continues = self.rest[end..].starts_with("::")
                && self.rest[end + 2..].starts_with(|c: char| c.is_ascii_alphanumeric());
            if !continues {
                // No word contains a line break.
                let (word, rest) = self.rest.split_at(end);
                self.rest = rest;
                return word;
            }
            end += 2;
        }
    }

    fn skip_blank(&mut self) -> Result<(), LoadError> {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.take(blank);
            if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.take(end);
            } else if self.rest.starts_with("/*") {
                let Some(end) = self.rest.find("*/") else {
                    return Err(self.error("the end of a comment"));
                };
                self.take(end + 2);
            } else {
                return Ok(());
            }
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

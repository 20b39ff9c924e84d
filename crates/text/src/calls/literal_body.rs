//! [`LiteralBody`]: calls in the form of a function call, `name(key="value")`, as in Llama's and LFM's lists and between
//! Gemma's marks.
//!
//! Values are literals of another language. Invariant: each argument is passed on when its value is complete.

use super::{
    Calls, Found, Step, begins_with, begins_with_any,
    literal::{Dialect, Literal, literal},
    space_len,
};

/// How a family writes such calls.
#[derive(Debug)]
pub(super) struct LiteralShape {
    /// Marks that begin calls.
    pub(super) openers: &'static [&'static str],
    /// Marks that may end them.
    pub(super) closers: &'static [&'static str],
    /// Whether the calls are a list in brackets, separated by commas.
    pub(super) is_list: bool,
    /// The text before a name.
    pub(super) prefix: &'static str,
    /// The brackets around the arguments.
    pub(super) brackets: (char, char),
    /// The separator between an argument's name and its value.
    pub(super) separator: char,
    /// The syntax of values.
    pub(super) dialect: Dialect,
}

const MAX_NAME_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Name,
    /// Before an argument or the end of the call.
    Argument,
    Value,
    AfterValue,
    AfterCall,
    Close,
}

/// Reads calls after their opening mark.
#[derive(Clone, Debug)]
pub(super) struct LiteralBody {
    shape: &'static LiteralShape,
    state: State,
    key: String,
    n_arguments: usize,
}

impl LiteralBody {
    pub(super) fn new(shape: &'static LiteralShape) -> Self {
        Self {
            shape,
            state: if shape.is_list { State::Open } else { State::Name },
            key: String::new(),
            n_arguments: 0,
        }
    }

    pub(super) fn step(&mut self, text: &str, is_last: bool, calls: &mut Calls) -> Step {
        let shape = self.shape;
        let space = space_len(text);
        let rest = &text[space..];
        if self.state == State::Close {
            return match begins_with_any(rest, shape.closers, is_last) {
                (Found::Yes, mark) => Step::Done(space + mark.len()),
                (Found::Unknown, _) => Step::Wait,
                (Found::No, _) => Step::Done(0),
            };
        }
        if self.state == State::AfterCall && !shape.is_list {
            self.state = State::Close;
            return Step::Took(0);
        }
        let Some(c) = rest.chars().next() else {
            return Step::Wait;
        };
        let after = space + c.len_utf8();
        match (self.state, c) {
            (State::Open, '[') | (State::AfterCall, ',') => self.go(State::Name, after),
            (State::Name, _) => self.name(text, space, is_last, calls),
            (State::Argument | State::AfterValue, c) if c == shape.brackets.1 => {
                calls.arguments(if self.n_arguments == 0 { "{}" } else { "}" });
                calls.end();
                self.go(State::AfterCall, after)
            }
            (State::Argument, _) => match rest.find(shape.separator) {
                Some(at) if at > 0 && at <= MAX_NAME_BYTES && is_key(&rest[..at]) => {
                    rest[..at].trim().clone_into(&mut self.key);
                    self.go(State::Value, space + at + shape.separator.len_utf8())
                }
                None if rest.len() <= MAX_NAME_BYTES && is_key(rest) => Step::Wait,
                _ => Step::Broken,
            },
            (State::Value, _) => match literal(rest, shape.dialect) {
                Literal::Wait => Step::Wait,
                Literal::Invalid => Step::Broken,
                Literal::Json(json, n) => {
                    let separator = if self.n_arguments == 0 { "{" } else { ", " };
                    let key = serde_json::Value::from(self.key.as_str());
                    calls.arguments(format!("{separator}{key}: {json}"));
                    self.n_arguments += 1;
                    self.go(State::AfterValue, space + n)
                }
            },
            (State::AfterValue, ',') => self.go(State::Argument, after),
            (State::AfterCall, ']') => self.go(State::Close, after),
            _ => Step::Broken,
        }
    }

    /// Returns whether a call has ended and none has begun since.
    pub(super) fn is_after_call(&self) -> bool {
        matches!(self.state, State::AfterCall | State::Close)
    }

    fn go(&mut self, state: State, n: usize) -> Step {
        self.state = state;
        Step::Took(n)
    }

    fn name(&mut self, text: &str, space: usize, is_last: bool, calls: &mut Calls) -> Step {
        let shape = self.shape;
        match begins_with(&text[space..], shape.prefix, is_last) {
            Found::Yes => {}
            Found::Unknown => return Step::Wait,
            Found::No => return Step::Broken,
        }
        let start = space + shape.prefix.len();
        let rest = &text[start..];
        match rest.find(shape.brackets.0) {
            Some(at) if calls.tools.contains(rest[..at].trim()) => {
                calls.start(rest[..at].trim(), None);
                self.n_arguments = 0;
                self.go(State::Argument, start + at + 1)
            }
            None if rest.len() <= MAX_NAME_BYTES && rest.chars().all(is_name_char) => Step::Wait,
            _ => Step::Broken,
        }
    }
}

/// Returns whether a text may be an argument's name, or its beginning.
fn is_key(text: &str) -> bool {
    text.trim().chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$')
}

//! Reads GBNF.
//!
//! Source: llama.cpp `grammars/README.md` and `src/llama-grammar.cpp`. Invariant: every named rule is defined, and nesting
//! is bounded.

use std::collections::HashMap;

use super::{Grammar, Node};
use crate::constraint::error::ConstraintError;

/// Levels of groups.
const MAX_DEPTH: usize = 100;

/// Largest repetition count.
const MAX_COUNT: u32 = 2000;

pub(super) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// Reads a grammar.
pub(super) fn parse(source: &str) -> Result<Grammar, ConstraintError> {
    let mut parser = Parser {
        source,
        at: 0,
        names: HashMap::new(),
        rules: Vec::new(),
    };
    parser.skip_space(true);
    while parser.at < source.len() {
        parser.rule()?;
        parser.skip_space(true);
    }
    let Some(&(root, _)) = parser.names.get("root") else {
        return Err(parser.error("there is no rule `root`"));
    };
    let mut undefined: Vec<_> = (parser.names.iter())
        .filter(|(_, (idx, _))| parser.rules[*idx].is_none())
        .map(|(name, &(_, at))| (at, name))
        .collect();
    undefined.sort_unstable();
    if let Some(&(at, name)) = undefined.first() {
        return Err(error_at(source, at, format!("the rule `{name}` is not defined")));
    }
    Ok(Grammar {
        rules: parser.rules.into_iter().flatten().collect(),
        root,
    })
}

struct Parser<'s> {
    source: &'s str,
    at: usize,
    /// Each rule's place, and where it was first named.
    names: HashMap<&'s str, (usize, usize)>,
    rules: Vec<Option<Node>>,
}

fn error_at(source: &str, at: usize, problem: impl Into<String>) -> ConstraintError {
    ConstraintError::Gbnf {
        line: source[..at].matches('\n').count() + 1,
        problem: problem.into(),
    }
}

impl<'s> Parser<'s> {
    fn error(&self, problem: impl Into<String>) -> ConstraintError {
        error_at(self.source, self.at, problem)
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn eat(&mut self, text: &str) -> bool {
        let is_next = self.rest().starts_with(text);
        if is_next {
            self.at += text.len();
        }
        is_next
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// Skips space and comments, and line breaks if the rule may continue on the next line.
    fn skip_space(&mut self, over_lines: bool) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('\r' | '\n') if over_lines => self.at += 1,
                Some('#') => {
                    let rest = self.rest();
                    self.at += rest.find(['\r', '\n']).unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<usize, ConstraintError> {
        let rest = self.rest();
        let len = rest.bytes().take_while(|&byte| is_name_byte(byte)).count();
        if len == 0 {
            return Err(self.error("expected the name of a rule"));
        }
        let next = self.rules.len();
        let (idx, _) = *self.names.entry(&rest[..len]).or_insert((next, self.at));
        if idx == next {
            self.rules.push(None);
        }
        self.at += len;
        Ok(idx)
    }

    fn rule(&mut self) -> Result<(), ConstraintError> {
        let start = self.at;
        let idx = self.name()?;
        let name = &self.source[start..self.at];
        self.skip_space(false);
        if !self.eat("::=") {
            return Err(self.error(format!("expected `::=` after `{name}`")));
        }
        if self.rules[idx].is_some() {
            return Err(self.error(format!("the rule `{name}` is defined twice")));
        }
        self.skip_space(true);
        let node = self.choice(0)?;
        self.rules[idx] = Some(node);
        self.skip_space(false);
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            Some(found) => Err(self.error(format!("expected the end of the rule `{name}`, found `{found}`"))),
        }
    }

    fn choice(&mut self, depth: usize) -> Result<Node, ConstraintError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("groups are nested deeper than {MAX_DEPTH} levels")));
        }
        let mut choices = vec![self.sequence(depth)?];
        while self.eat("|") {
            self.skip_space(true);
            choices.push(self.sequence(depth)?);
        }
        Ok(match choices.len() {
            1 => choices.remove(0),
            _ => Node::Choice(choices),
        })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, ConstraintError> {
        let is_nested = depth > 0;
        let mut parts = Vec::new();
        loop {
            let part = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Node::Any
                }
                Some('(') => {
                    self.at += 1;
                    self.skip_space(true);
                    let inner = self.choice(depth + 1)?;
                    if !self.eat(")") {
                        return Err(self.error("expected `)`"));
                    }
                    inner
                }
                Some('<' | '!') => {
                    return Err(self.error("tokens (`<...>`) are not supported; write their text"));
                }
                Some(next) if next.is_ascii() && is_name_byte(next as u8) => Node::Rule(self.name()?),
                _ => break,
            };
            self.skip_space(is_nested);
            let part = self.repetitions(part)?;
            self.skip_space(is_nested);
            parts.push(part);
        }
        Ok(match parts.len() {
            0 => Node::Literal(String::new()),
            1 => parts.remove(0),
            _ => Node::Sequence(parts),
        })
    }

    fn repetitions(&mut self, mut node: Node) -> Result<Node, ConstraintError> {
        for _ in 0..=MAX_DEPTH {
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let counts = self.counts()?;
                    node = Node::Repeat(Box::new(node), counts.0, counts.1);
                    continue;
                }
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat(Box::new(node), min, max);
        }
        Err(self.error(format!("a part is repeated more than {MAX_DEPTH} times over")))
    }

    /// Reads `m}`, `m,}`, `,n}` or `m,n}`.
    fn counts(&mut self) -> Result<(u32, Option<u32>), ConstraintError> {
        self.skip_space(true);
        let min = self.count()?;
        self.skip_space(true);
        let max = if self.eat(",") {
            self.skip_space(true);
            self.count()?
        } else {
            min
        };
        self.skip_space(true);
        if !self.eat("}") || (min, max) == (None, None) {
            return Err(self.error("expected a count, as in `{2}`, `{2,}` or `{2,5}`"));
        }
        let is_exact = self.source[..self.at]
            .rfind('{')
            .is_some_and(|open| !self.source[open..self.at].contains(','));
        let max = if is_exact { min } else { max };
        if max.is_some_and(|max| max < min.unwrap_or(0)) {
            return Err(self.error("a count ends below its beginning"));
        }
        Ok((min.unwrap_or(0), max))
    }

    fn count(&mut self) -> Result<Option<u32>, ConstraintError> {
        let rest = self.rest();
        let len = rest.bytes().take_while(u8::is_ascii_digit).count();
        if len == 0 {
            return Ok(None);
        }
        let count = rest[..len]
            .parse::<u32>()
            .ok()
            .filter(|&count| count <= MAX_COUNT);
        let Some(count) = count else {
            return Err(self.error(format!("a count is {}, the limit is {MAX_COUNT}", &rest[..len])));
        };
        self.at += len;
        Ok(Some(count))
    }

    fn literal(&mut self) -> Result<Node, ConstraintError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => {
                    self.at += 1;
                    return Ok(Node::Literal(text));
                }
                None | Some('\n') => return Err(self.error("expected `\"` at the end of a text")),
                Some(_) => text.push(self.character()?),
            }
        }
    }

    fn class(&mut self) -> Result<Node, ConstraintError> {
        self.at += 1;
        let is_negated = self.eat("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                Some(']') => {
                    self.at += 1;
                    break;
                }
                None | Some('\n') => return Err(self.error("expected `]` at the end of a class")),
                Some(_) => {}
            }
            let first = self.character()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = if is_range {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err(self.error(format!("the range `{first}-{last}` ends before its beginning")));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            return if is_negated {
                Ok(Node::Any)
            } else {
                Err(self.error("a class is empty"))
            };
        }
        Ok(Node::Class { is_negated, ranges })
    }

    /// Reads a character of a text or class, perhaps an escaped one.
    fn character(&mut self) -> Result<char, ConstraintError> {
        let start = self.at;
        let Some(next) = self.next() else {
            return Err(self.error("the grammar ends inside a text"));
        };
        if next != '\\' {
            return Ok(next);
        }
        let n_digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(same @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '.' | '\'')) => return Ok(same),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(error_at(self.source, start, "an escape is not known")),
        };
        let code = (self.rest().get(..n_digits))
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .and_then(char::from_u32);
        let Some(code) = code else {
            return Err(error_at(
                self.source,
                start,
                format!("expected {n_digits} hexadecimal digits of a character"),
            ));
        };
        self.at += n_digits;
        Ok(code)
    }
}

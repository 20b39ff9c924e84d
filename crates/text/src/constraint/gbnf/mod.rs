//! Translates GBNF, llama.cpp's notation of grammars, to the Lark notation of the compiler.
//!
//! Only this language is parsed here. Invariant: the translation describes exactly the same texts; a construct without a translation is refused
//! with its line.
//!
//! The two differ in one thing. GBNF describes characters; Lark's terminals take the longest match, so a terminal may swallow the beginning of the
//! following text. Hence a grammar without recursion becomes one regular expression, if that is not too long. In every other grammar, a part
//! becomes a terminal only if it provably swallows nothing; otherwise it is divided into its parts, down to single characters.

mod chars;
mod lark;
mod parse;
mod regular;
mod terminals;

use super::{
    budget::check_references,
    chains::References,
    error::{ConstraintError, ConstraintKind},
};

/// Translates a grammar. Its chains of references must be within the limits, because the translation follows them by recursion, as the
/// compiler does.
pub(super) fn to_lark(source: &str) -> Result<String, ConstraintError> {
    let grammar = parse::parse(source)?;
    check_references(ConstraintKind::Gbnf, grammar.references().longest())?;
    Ok(lark::write(&grammar))
}

/// Returns whether a line of `source` defines a rule as GBNF does.
pub(super) fn looks_like_gbnf(source: &str) -> bool {
    source.lines().any(|line| {
        line.split_once("::=").is_some_and(|(name, _)| {
            let name = name.trim();
            !name.is_empty() && name.bytes().all(parse::is_name_byte)
        })
    })
}

/// A grammar: its rules, the first of which is not necessarily the root.
#[derive(Debug)]
struct Grammar {
    rules: Vec<Node>,
    root: usize,
}

impl Grammar {
    /// Collects the references between the rules.
    fn references(&self) -> References {
        let mut references = References::default();
        for _ in &self.rules {
            references.add();
        }
        for (of, rule) in self.rules.iter().enumerate() {
            let mut open = vec![(rule, 1)];
            while let Some((node, level)) = open.pop() {
                match node {
                    Node::Rule(to) => references.refer(of, *to, level),
                    Node::Sequence(parts) | Node::Choice(parts) => {
                        open.extend(parts.iter().map(|part| (part, level + 1)));
                    }
                    Node::Repeat(inner, ..) => open.push((inner, level + 1)),
                    Node::Literal(_) | Node::Class { .. } | Node::Any => {}
                }
            }
        }
        references
    }
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// A text, which may be empty.
    Literal(String),
    /// One character of these ranges, or of none of them.
    Class {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// Any character.
    Any,
    /// Another rule.
    Rule(usize),
    /// One after the other.
    Sequence(Vec<Node>),
    /// One of these nodes.
    Choice(Vec<Node>),
    /// A repetition with a minimum and a maximum.
    Repeat(Box<Node>, u32, Option<u32>),
}

#[cfg(test)]
mod tests;

//! Writes a grammar in Lark's notation.
//!
//! Invariant: names and characters of the source appear only in escaped form, so that no grammar can inject Lark.

use std::fmt::Write as _;

use super::{
    Grammar, Node,
    terminals::{divide, write_divided},
};

/// Longest regular expression for a whole grammar, or for a rule of one.
pub(super) const MAX_REGEX_BYTES: usize = 1 << 16;

/// Writes `grammar`.
pub(super) fn write(grammar: &Grammar) -> String {
    let mut regex = String::new();
    if write_regex(grammar, &Node::Rule(grammar.root), &mut Vec::new(), &mut regex) {
        return format!("start: /{regex}/\n");
    }
    write_divided(&divide(grammar), grammar.root)
}

/// Writes a part as a regular expression; `false` if it is recursive or too long.
pub(super) fn write_regex(grammar: &Grammar, node: &Node, path: &mut Vec<usize>, out: &mut String) -> bool {
    if out.len() > MAX_REGEX_BYTES {
        return false;
    }
    match node {
        Node::Literal(text) => {
            text.chars().for_each(|c| write_char(c, out));
            true
        }
        Node::Class { .. } | Node::Any => {
            write_class(node, out);
            true
        }
        Node::Rule(idx) => {
            if path.contains(idx) {
                return false;
            }
            path.push(*idx);
            let is_regular = write_group(grammar, &grammar.rules[*idx], path, out);
            path.pop();
            is_regular
        }
        Node::Sequence(parts) => parts.iter().all(|part| write_group(grammar, part, path, out)),
        Node::Choice(choices) => choices.iter().enumerate().all(|(idx, choice)| {
            if idx > 0 {
                out.push('|');
            }
            write_group(grammar, choice, path, out)
        }),
        Node::Repeat(inner, min, max) => {
            let is_regular = write_group(grammar, inner, path, out);
            write_counts(*min, *max, out);
            is_regular
        }
    }
}

fn write_group(grammar: &Grammar, node: &Node, path: &mut Vec<usize>, out: &mut String) -> bool {
    out.push_str("(?:");
    let is_regular = write_regex(grammar, node, path, out);
    out.push(')');
    is_regular
}

/// Writes the repetition counts of a part.
pub(super) fn write_counts(min: u32, max: Option<u32>, out: &mut String) {
    let _ = match (min, max) {
        (0, None) => write!(out, "*"),
        (1, None) => write!(out, "+"),
        (0, Some(1)) => write!(out, "?"),
        (min, None) => write!(out, "{{{min},}}"),
        (min, Some(max)) => write!(out, "{{{min},{max}}}"),
    };
}

pub(super) fn write_class(node: &Node, out: &mut String) {
    match node {
        Node::Class { is_negated, ranges } => {
            out.push_str(if *is_negated { "[^" } else { "[" });
            for &(first, last) in ranges {
                write_char(first, out);
                if last != first {
                    out.push('-');
                    write_char(last, out);
                }
            }
            out.push(']');
        }
        _ => out.push_str("(?s:.)"),
    }
}

/// Writes a character so that neither a regular expression nor Lark gives it another meaning.
pub(super) fn write_char(c: char, out: &mut String) {
    if c.is_ascii_alphanumeric() || c == ' ' || (!c.is_ascii() && !c.is_control() && !c.is_whitespace()) {
        out.push(c);
    } else {
        let _ = write!(out, "\\x{{{:x}}}", u32::from(c));
    }
}

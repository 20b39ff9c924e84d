//! Writes a grammar in Lark's notation.
//!
//! Separate from the parser so that each can be read against its notation. Invariant: names and characters of the source
//! appear only in escaped form, so that no grammar can write Lark of its own.

use std::fmt::Write as _;

use super::{Grammar, Node};

/// Longest regular expression that stands for a whole grammar.
const MAX_REGEX_BYTES: usize = 1 << 16;

/// Writes `grammar`.
pub(super) fn write(grammar: &Grammar) -> String {
    let mut regex = String::new();
    let mut path = Vec::new();
    if write_regex(grammar, &Node::Rule(grammar.root), &mut path, &mut regex) {
        return format!("start: /{regex}/\n");
    }
    let mut lark = format!("start: r{}\n", grammar.root);
    for (idx, rule) in grammar.rules.iter().enumerate() {
        let _ = write!(lark, "r{idx}: ");
        write_node(rule, &mut lark);
        lark.push('\n');
    }
    lark
}

/// Writes a part as a regular expression; `false` where it is recursive or too long.
fn write_regex(grammar: &Grammar, node: &Node, path: &mut Vec<usize>, out: &mut String) -> bool {
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

/// Writes a part as a rule of single characters.
fn write_node(node: &Node, out: &mut String) {
    match node {
        Node::Literal(text) if text.is_empty() => out.push_str("\"\""),
        Node::Literal(text) => {
            for (idx, c) in text.chars().enumerate() {
                out.push_str(if idx == 0 { "/" } else { " /" });
                write_char(c, out);
                out.push('/');
            }
        }
        Node::Class { .. } | Node::Any => {
            out.push('/');
            write_class(node, out);
            out.push('/');
        }
        Node::Rule(idx) => {
            let _ = write!(out, "r{idx}");
        }
        Node::Sequence(parts) => {
            for (idx, part) in parts.iter().enumerate() {
                if idx > 0 {
                    out.push(' ');
                }
                write_node_group(part, out);
            }
        }
        Node::Choice(choices) => {
            for (idx, choice) in choices.iter().enumerate() {
                if idx > 0 {
                    out.push_str(" | ");
                }
                write_node_group(choice, out);
            }
        }
        Node::Repeat(inner, min, max) => {
            write_node_group(inner, out);
            write_counts(*min, *max, out);
        }
    }
}

fn write_node_group(node: &Node, out: &mut String) {
    out.push('(');
    write_node(node, out);
    out.push(')');
}

fn write_counts(min: u32, max: Option<u32>, out: &mut String) {
    let _ = match (min, max) {
        (0, None) => write!(out, "*"),
        (1, None) => write!(out, "+"),
        (0, Some(1)) => write!(out, "?"),
        (min, None) => write!(out, "{{{min},}}"),
        (min, Some(max)) => write!(out, "{{{min},{max}}}"),
    };
}

fn write_class(node: &Node, out: &mut String) {
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

/// Writes a character so that neither a regular expression nor Lark reads anything else in it.
fn write_char(c: char, out: &mut String) {
    if c.is_ascii_alphanumeric() || c == ' ' || (!c.is_ascii() && !c.is_control() && !c.is_whitespace()) {
        out.push(c);
    } else {
        let _ = write!(out, "\\x{{{:x}}}", u32::from(c));
    }
}

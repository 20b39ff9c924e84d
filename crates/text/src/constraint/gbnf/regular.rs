//! Decides which rules of a grammar are written as regular expressions where they are named.
//!
//! It looks at the rules as they were written, before they are divided into terminals. Invariants: such a rule leads to no
//! recursion, its expression is no longer than the limit, and all expressions of a grammar together are bounded, however often
//! rules name each other.

use super::{
    Grammar, Node,
    lark::{MAX_REGEX_BYTES, write_char, write_class, write_counts},
};

/// Limit of the total bytes of all such places; short rules may exceed it.
const MAX_WRITTEN_BYTES: usize = 4 << 20;

/// Limit of a rule's expression in a grammar that would exceed [`MAX_WRITTEN_BYTES`].
const SMALL_REGEX_BYTES: usize = 256;

/// Returns the rules that are written as regular expressions. The root is not one: the grammar begins with it.
pub(super) fn regular_rules(grammar: &Grammar) -> Vec<bool> {
    let named: Vec<Vec<usize>> = (grammar.rules.iter())
        .map(|rule| {
            let mut found = Vec::new();
            leads_to(rule, &mut found);
            found
        })
        .collect();
    let lens = regex_lens(grammar, &named);
    let is_regular = |max_bytes: usize| -> Vec<bool> {
        (lens.iter().enumerate())
            .map(|(idx, len)| idx != grammar.root && len.is_some_and(|len| len <= max_bytes))
            .collect()
    };
    let regular = is_regular(MAX_REGEX_BYTES);
    let written = (named.iter().flatten())
        .filter(|&&idx| regular[idx])
        .fold(0, |sum: usize, &idx| sum.saturating_add(lens[idx].unwrap_or(0)));
    if written > MAX_WRITTEN_BYTES {
        return is_regular(SMALL_REGEX_BYTES);
    }
    regular
}

/// Lists the rules that a part names, each as often as it does.
fn leads_to(node: &Node, found: &mut Vec<usize>) {
    match node {
        Node::Rule(idx) => found.push(*idx),
        Node::Sequence(parts) | Node::Choice(parts) => {
            for part in parts {
                leads_to(part, found);
            }
        }
        Node::Repeat(inner, ..) => leads_to(inner, found),
        Node::Literal(_) | Node::Class { .. } | Node::Any => {}
    }
}

/// Returns the bytes of each rule as a regular expression; `None` for a rule that leads to recursion. A rule is visited after
/// all rules that it names, so that none is visited twice.
fn regex_lens(grammar: &Grammar, named: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut named_by: Vec<Vec<usize>> = vec![Vec::new(); named.len()];
    for (idx, named) in named.iter().enumerate() {
        for &other in named {
            named_by[other].push(idx);
        }
    }
    let mut n_left: Vec<usize> = named.iter().map(Vec::len).collect();
    let mut lens = vec![None; named.len()];
    let mut ready: Vec<usize> = (0..named.len()).filter(|&idx| n_left[idx] == 0).collect();
    while let Some(idx) = ready.pop() {
        lens[idx] = Some(regex_len(&grammar.rules[idx], &lens));
        for &other in &named_by[idx] {
            n_left[other] -= 1;
            if n_left[other] == 0 {
                ready.push(other);
            }
        }
    }
    lens
}

/// Returns the bytes that [`super::lark::write_regex`] writes for a part, from those of the rules that it names.
fn regex_len(node: &Node, lens: &[Option<usize>]) -> usize {
    let group = |node: &Node| regex_len(node, lens).saturating_add("(?:)".len());
    let groups = |parts: &[Node]| parts.iter().map(group).fold(0, usize::saturating_add);
    let mut leaf = String::new();
    match node {
        Node::Literal(text) => {
            text.chars().for_each(|c| write_char(c, &mut leaf));
            leaf.len()
        }
        Node::Class { .. } | Node::Any => {
            write_class(node, &mut leaf);
            leaf.len()
        }
        Node::Rule(idx) => (lens[*idx].unwrap_or(usize::MAX)).saturating_add("(?:)".len()),
        Node::Sequence(parts) => groups(parts),
        Node::Choice(choices) => groups(choices).saturating_add(choices.len().saturating_sub(1)),
        Node::Repeat(inner, min, max) => {
            write_counts(*min, *max, &mut leaf);
            group(inner).saturating_add(leaf.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{lark::write_regex, parse::parse},
        *,
    };

    /// Checks which rules are regular, in the order in which they are first named.
    #[track_caller]
    fn check(grammar: &str, expected: &[bool]) {
        assert_eq!(regular_rules(&parse(grammar).unwrap()), expected);
    }

    #[test]
    fn rules_without_recursion_are_regular_but_the_root_is_not() {
        check("root ::= a\na ::= \"x\" b\nb ::= [0-9]*", &[false, true, true]);
        check(
            "root ::= a b\na ::= \"x\" a | b\nb ::= \"y\"",
            &[false, false, true],
        );
    }

    #[test]
    fn a_length_is_that_of_the_expression() {
        let source =
            "root ::= (a | \"é\\n\" | [^a-c-]) b{2,} . \"\"\na ::= b? \"/x\"{3,4}\nb ::= [0-9]* | \"\"";
        let grammar = parse(source).unwrap();
        let mut regex = String::new();
        assert!(write_regex(
            &grammar,
            &grammar.rules[grammar.root],
            &mut vec![grammar.root],
            &mut regex
        ));
        let mut named = Vec::new();
        for rule in &grammar.rules {
            named.push(Vec::new());
            leads_to(rule, named.last_mut().unwrap());
        }
        assert_eq!(
            regex_lens(&grammar, &named)[grammar.root],
            Some(regex.len()),
            "{regex}"
        );
    }

    #[test]
    fn long_rules_are_rules_and_many_of_them_have_a_bound() {
        let long = "x".repeat(MAX_REGEX_BYTES + 1);
        check(
            &format!("root ::= a b\na ::= \"{long}\"\nb ::= \"y\""),
            &[false, false, true],
        );
        let half = "x".repeat(MAX_REGEX_BYTES / 2);
        let often = |n: usize| format!("root ::= {} b\na ::= \"{half}\"\nb ::= \"y\"", "a ".repeat(n));
        check(&often(10), &[false, true, true]);
        check(&often(1000), &[false, false, true]);
    }
}

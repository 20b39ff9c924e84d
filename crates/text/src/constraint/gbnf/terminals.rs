//! Finds the parts of a grammar that may become longest-match terminals without losing any text.
//!
//! A terminal is kept whole if no character that may follow it could also extend it, and if no other terminal that may
//! occur at its place could take such a character. Every other terminal is divided into its parts, in the end into single
//! characters. Invariant: all sets here are upper bounds, so that in doubt a terminal is divided.

use std::fmt::Write as _;

use super::{
    Grammar, Node,
    chars::Chars,
    lark::{write_counts, write_regex},
    regular::regular_rules,
};

/// Largest number of terminals that are compared with each other, and of rules in which they may occur; a larger grammar
/// is written character by character.
const MAX_TERMINALS: usize = 400;
const MAX_RULES: usize = 4000;

/// A part of a rule, divided into terminals.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Terminal(usize),
    Rule(usize),
    Sequence(Vec<Part>),
    Choice(Vec<Part>),
    Repeat(Box<Part>, u32, Option<u32>),
}

/// A part that is matched as a whole.
#[derive(Clone, Debug)]
pub(super) struct Terminal {
    node: Node,
    pub(super) regex: String,
    pub(super) facts: Facts,
}

/// A grammar whose rules are made of terminals. Rules that became terminals where they are named are empty.
pub(super) struct Divided {
    pub(super) rules: Vec<Option<Part>>,
    pub(super) terminals: Vec<Terminal>,
}

/// Facts about the texts of a part without recursion.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) is_nullable: bool,
    /// First characters.
    first: Chars,
    /// All other characters.
    inner: Chars,
    /// Characters that may follow a whole text of the part within a longer one.
    extending: Chars,
}

impl Facts {
    fn of(grammar: &Grammar, node: &Node) -> Self {
        match node {
            Node::Literal(text) => {
                let mut chars = text.chars();
                let first = chars.next();
                Self {
                    is_nullable: text.is_empty(),
                    first: Chars::of(first.map(|c| (c, c))),
                    inner: Chars::of(chars.map(|c| (c, c))),
                    extending: Chars::default(),
                }
            }
            Node::Class { is_negated, ranges } => {
                let chars = Chars::of(ranges.iter().copied());
                Self {
                    first: if *is_negated { chars.complement() } else { chars },
                    ..Self::default()
                }
            }
            Node::Any => Self {
                first: Chars::all(),
                ..Self::default()
            },
            Node::Rule(idx) => Self::of(grammar, &grammar.rules[*idx]),
            Node::Sequence(parts) => (parts.iter())
                .map(|part| Self::of(grammar, part))
                .reduce(|before, next| before.then(&next))
                .unwrap_or_default(),
            Node::Choice(choices) => (choices.iter())
                .map(|choice| Self::of(grammar, choice))
                .reduce(|one, other| one.or(&other))
                .unwrap_or_default(),
            Node::Repeat(inner, min, max) => Self::of(grammar, inner).repeated(*min, *max),
        }
    }

    /// Returns the facts with the assumption that any of its characters may extend it.
    fn with_everything_extending(mut self) -> Self {
        self.extending = self.first.union(&self.inner);
        self
    }

    fn then(self, next: &Self) -> Self {
        let is_ambiguous = self.extending.meets(&next.first);
        let mut joined = Self {
            is_nullable: self.is_nullable && next.is_nullable,
            first: self.first.clone(),
            inner: self.inner.union(&next.inner),
            extending: next.extending.clone(),
        };
        joined.inner.add(&next.first);
        if self.is_nullable {
            joined.first.add(&next.first);
        }
        if next.is_nullable {
            joined.extending.add(&self.extending);
            joined.extending.add(&next.first);
        }
        // If the first part may be empty, a text may match the second part alone, or both.
        if is_ambiguous || (self.is_nullable && self.first.meets(&next.first)) {
            joined = joined.with_everything_extending();
        }
        joined
    }

    fn or(self, other: &Self) -> Self {
        let is_ambiguous = self.first.meets(&other.first);
        let joined = Self {
            is_nullable: self.is_nullable || other.is_nullable,
            first: self.first.union(&other.first),
            inner: self.inner.union(&other.inner),
            extending: self.extending.union(&other.extending),
        };
        if is_ambiguous {
            joined.with_everything_extending()
        } else {
            joined
        }
    }

    fn repeated(self, min: u32, max: Option<u32>) -> Self {
        if max == Some(0) {
            return Self {
                is_nullable: true,
                ..Self::default()
            };
        }
        let is_ambiguous = self.is_nullable || self.extending.meets(&self.first);
        let is_once = max == Some(1);
        let mut repeated = Self {
            is_nullable: min == 0 || self.is_nullable,
            ..self.clone()
        };
        if is_once {
            return repeated;
        }
        repeated.inner.add(&self.first);
        if is_ambiguous {
            return repeated.with_everything_extending();
        }
        if max != Some(min) {
            repeated.extending.add(&self.first);
        }
        repeated
    }
}

/// Divides a grammar into terminals that may be matched as long as they can be.
pub(super) fn divide(grammar: &Grammar) -> Divided {
    let is_regular = regular_rules(grammar);
    let mut divider = Divider {
        grammar,
        is_regular: &is_regular,
        terminals: Vec::new(),
    };
    let rules =
        (0..grammar.rules.len()).map(|idx| (!is_regular[idx]).then(|| divider.part(&grammar.rules[idx])));
    let mut divided = Divided {
        rules: rules.collect(),
        terminals: Vec::new(),
    };
    divided.terminals = divider.terminals;
    loop {
        let guilty = if divided.terminals.len() > MAX_TERMINALS || divided.rules.len() > MAX_RULES {
            divided.terminals.iter().map(Terminal::is_divisible).collect()
        } else {
            find_guilty(&divided, grammar.root)
        };
        if !guilty.contains(&true) {
            return divided;
        }
        divided = divide_further(grammar, &is_regular, &divided, &guilty);
    }
}

impl Terminal {
    /// Returns whether it has parts. A terminal without parts never takes a wrong character.
    fn is_divisible(&self) -> bool {
        match &self.node {
            Node::Literal(text) => text.chars().nth(1).is_some(),
            Node::Class { .. } | Node::Any => false,
            _ => true,
        }
    }
}

struct Divider<'g> {
    grammar: &'g Grammar,
    is_regular: &'g [bool],
    terminals: Vec<Terminal>,
}

impl Divider<'_> {
    fn is_regular(&self, node: &Node) -> bool {
        match node {
            Node::Rule(idx) => self.is_regular[*idx],
            Node::Sequence(parts) | Node::Choice(parts) => parts.iter().all(|part| self.is_regular(part)),
            Node::Repeat(inner, ..) => self.is_regular(inner),
            Node::Literal(_) | Node::Class { .. } | Node::Any => true,
        }
    }

    fn part(&mut self, node: &Node) -> Part {
        // Sequences are divided at once: their parts are the smaller terminals, and more of them are equal.
        if self.is_regular(node) && !matches!(node, Node::Sequence(_)) {
            return self.terminal(node);
        }
        self.parts_of(node)
    }

    fn terminal(&mut self, node: &Node) -> Part {
        let mut regex = String::new();
        if !write_regex(self.grammar, node, &mut Vec::new(), &mut regex) {
            return self.parts_of(node);
        }
        self.terminals.push(Terminal {
            node: node.clone(),
            regex,
            facts: Facts::of(self.grammar, node),
        });
        Part::Terminal(self.terminals.len() - 1)
    }

    fn parts_of(&mut self, node: &Node) -> Part {
        match node {
            Node::Literal(text) => {
                let chars = text.chars().map(|c| self.terminal(&Node::Literal(c.to_string())));
                Part::Sequence(chars.collect())
            }
            Node::Class { .. } | Node::Any => self.terminal(node),
            Node::Rule(idx) if self.is_regular[*idx] => self.part(&self.grammar.rules[*idx]),
            Node::Rule(idx) => Part::Rule(*idx),
            Node::Sequence(parts) => Part::Sequence(parts.iter().map(|part| self.part(part)).collect()),
            Node::Choice(choices) => Part::Choice(choices.iter().map(|choice| self.part(choice)).collect()),
            Node::Repeat(inner, min, max) => Part::Repeat(Box::new(self.part(inner)), *min, *max),
        }
    }
}

/// Divides the guilty terminals into their parts.
fn divide_further(grammar: &Grammar, is_regular: &[bool], divided: &Divided, guilty: &[bool]) -> Divided {
    fn walk(part: &Part, divided: &Divided, guilty: &[bool], divider: &mut Divider<'_>) -> Part {
        let mut all = |parts: &[Part]| {
            parts
                .iter()
                .map(|part| walk(part, divided, guilty, divider))
                .collect()
        };
        match part {
            Part::Terminal(idx) if guilty[*idx] => divider.parts_of(&divided.terminals[*idx].node),
            Part::Terminal(idx) => {
                divider.terminals.push(divided.terminals[*idx].clone());
                Part::Terminal(divider.terminals.len() - 1)
            }
            Part::Rule(idx) => Part::Rule(*idx),
            Part::Sequence(parts) => Part::Sequence(all(parts)),
            Part::Choice(choices) => Part::Choice(all(choices)),
            Part::Repeat(inner, min, max) => {
                Part::Repeat(Box::new(walk(inner, divided, guilty, divider)), *min, *max)
            }
        }
    }
    let mut divider = Divider {
        grammar,
        is_regular,
        terminals: Vec::new(),
    };
    let rules = (divided.rules.iter())
        .map(|rule| {
            rule.as_ref()
                .map(|part| walk(part, divided, guilty, &mut divider))
        })
        .collect();
    Divided {
        rules,
        terminals: divider.terminals,
    }
}

/// A set of terminals.
type Set = Vec<bool>;

fn add(set: &mut Set, other: &Set) -> bool {
    let mut has_changed = false;
    for (bit, &other) in set.iter_mut().zip(other) {
        has_changed |= other && !*bit;
        *bit |= other;
    }
    has_changed
}

/// Says which terminals may begin a rule and which may follow one, and whether it may be empty.
struct Sets<'d> {
    divided: &'d Divided,
    first: Vec<Set>,
    is_nullable: Vec<bool>,
    follow: Vec<Set>,
    /// Which terminals may follow each terminal.
    after: Vec<Set>,
}

impl Sets<'_> {
    fn first_of(&self, part: &Part) -> (Set, bool) {
        let n_terminals = self.divided.terminals.len();
        match part {
            Part::Terminal(idx) => {
                let mut set = vec![false; n_terminals];
                set[*idx] = true;
                (set, self.divided.terminals[*idx].facts.is_nullable)
            }
            Part::Rule(idx) => (self.first[*idx].clone(), self.is_nullable[*idx]),
            Part::Sequence(parts) => {
                let mut set = vec![false; n_terminals];
                for part in parts {
                    let (first, is_nullable) = self.first_of(part);
                    add(&mut set, &first);
                    if !is_nullable {
                        return (set, false);
                    }
                }
                (set, true)
            }
            Part::Choice(choices) => {
                let mut joined = (vec![false; n_terminals], false);
                for choice in choices {
                    let (first, is_nullable) = self.first_of(choice);
                    add(&mut joined.0, &first);
                    joined.1 |= is_nullable;
                }
                joined
            }
            Part::Repeat(inner, min, _) => {
                let (first, is_nullable) = self.first_of(inner);
                (first, is_nullable || *min == 0)
            }
        }
    }

    /// Notes that `next` may follow `part`, with the consequences for its parts.
    fn follow(&mut self, part: &Part, next: &Set) -> bool {
        match part {
            Part::Terminal(idx) => add(&mut self.after[*idx], next),
            Part::Rule(idx) => add(&mut self.follow[*idx], next),
            Part::Sequence(parts) => {
                let mut has_changed = false;
                let mut next = next.clone();
                for part in parts.iter().rev() {
                    has_changed |= self.follow(part, &next);
                    let (mut first, is_nullable) = self.first_of(part);
                    if is_nullable {
                        add(&mut first, &next);
                    }
                    next = first;
                }
                has_changed
            }
            Part::Choice(choices) => {
                let mut has_changed = false;
                for choice in choices {
                    has_changed |= self.follow(choice, next);
                }
                has_changed
            }
            Part::Repeat(inner, _, max) => {
                let mut next = next.clone();
                if *max != Some(1) {
                    add(&mut next, &self.first_of(inner).0);
                }
                self.follow(inner, &next)
            }
        }
    }
}

/// Finds the terminals that may take a character of the following text.
fn find_guilty(divided: &Divided, root: usize) -> Vec<bool> {
    let (n_rules, n_terminals) = (divided.rules.len(), divided.terminals.len());
    let mut sets = Sets {
        divided,
        first: vec![vec![false; n_terminals]; n_rules],
        is_nullable: vec![false; n_rules],
        follow: vec![vec![false; n_terminals]; n_rules],
        after: vec![vec![false; n_terminals]; n_terminals],
    };
    let rules: Vec<(usize, &Part)> = (divided.rules.iter().enumerate())
        .filter_map(|(idx, rule)| Some((idx, rule.as_ref()?)))
        .collect();
    loop {
        let mut has_changed = false;
        for &(idx, rule) in &rules {
            let (first, is_nullable) = sets.first_of(rule);
            has_changed |= add(&mut sets.first[idx], &first) || is_nullable != sets.is_nullable[idx];
            sets.is_nullable[idx] = is_nullable;
        }
        if !has_changed {
            break;
        }
    }
    loop {
        let mut has_changed = false;
        for &(idx, rule) in &rules {
            let next = sets.follow[idx].clone();
            has_changed |= sets.follow(rule, &next);
        }
        if !has_changed {
            break;
        }
    }
    // Pairs of terminals that may occur at the same place.
    let mut beside = vec![vec![false; n_terminals]; n_terminals];
    for place in std::iter::once(&sets.first[root]).chain(&sets.after) {
        for idx in (0..n_terminals).filter(|&idx| place[idx]) {
            add(&mut beside[idx], place);
        }
    }
    let mut guilty = vec![false; n_terminals];
    for (idx, terminal) in divided.terminals.iter().enumerate() {
        let mut next = Chars::default();
        for after in (0..n_terminals).filter(|&after| sets.after[idx][after]) {
            next.add(&divided.terminals[after].facts.first);
        }
        guilty[idx] |= terminal.is_divisible() && terminal.facts.extending.meets(&next);
        for other_idx in (0..n_terminals).filter(|&other| beside[idx][other]) {
            let other = &divided.terminals[other_idx];
            if other.regex != terminal.regex
                && other.is_divisible()
                && other.facts.first.meets(&terminal.facts.first)
                && other.facts.inner.meets(&next)
            {
                guilty[other_idx] = true;
            }
        }
    }
    guilty
}

/// Writes a divided grammar in Lark's notation.
pub(super) fn write_divided(divided: &Divided, root: usize) -> String {
    let mut lark = format!("start: r{root}\n");
    for (idx, terminal) in divided.terminals.iter().enumerate() {
        let _ = if terminal.facts.is_nullable {
            // A terminal matches something, or is absent.
            writeln!(lark, "T{idx}: /{}/ & /(?s:.)+/", terminal.regex)
        } else {
            writeln!(lark, "T{idx}: /{}/", terminal.regex)
        };
    }
    for (idx, rule) in divided.rules.iter().enumerate() {
        if let Some(rule) = rule {
            let _ = write!(lark, "r{idx}: ");
            write_part(divided, rule, &mut lark);
            lark.push('\n');
        }
    }
    lark
}

fn write_part(divided: &Divided, part: &Part, out: &mut String) {
    let list = |parts: &[Part], separator: &str, out: &mut String| {
        for (idx, part) in parts.iter().enumerate() {
            if idx > 0 {
                out.push_str(separator);
            }
            out.push('(');
            write_part(divided, part, out);
            out.push(')');
        }
    };
    let _ = match part {
        Part::Terminal(idx) if divided.terminals[*idx].regex.is_empty() => write!(out, "\"\""),
        Part::Terminal(idx) if divided.terminals[*idx].facts.is_nullable => write!(out, "T{idx}?"),
        Part::Terminal(idx) => write!(out, "T{idx}"),
        Part::Rule(idx) => write!(out, "r{idx}"),
        Part::Sequence(parts) if parts.is_empty() => write!(out, "\"\""),
        Part::Sequence(parts) => {
            list(parts, " ", out);
            Ok(())
        }
        Part::Choice(choices) => {
            list(choices, " | ", out);
            Ok(())
        }
        Part::Repeat(inner, min, max) => {
            out.push('(');
            write_part(divided, inner, out);
            out.push(')');
            write_counts(*min, *max, out);
            Ok(())
        }
    };
}

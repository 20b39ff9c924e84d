//! [`Pattern`]: a splitter given as a regular expression.
//!
//! It takes any pattern of a `tokenizer.json`. Invariant: matching is by finite automaton, in linear time. The one look-ahead that
//! tokenizers use, `\s+(?!\S)`, is removed from the pattern and done here; any other look-around is refused. A pattern has the same
//! meaning as in Oniguruma, the engine of Hugging Face's tokenizers, in every spelling.

use std::{borrow::Cow, collections::BTreeMap, ops::Range};

use regex::Regex;
use regex_syntax::ast::{self, AssertionKind, Ast, RepetitionKind, Span, Visitor, parse::Parser};

use crate::{TokenizerError, tokenizer::chars};

use super::WordRule;

/// Selects the treatment of a splitter's matches, in Hugging Face's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub(crate) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// Replaces the look-ahead at a pattern's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LookAhead {
    /// Group of `\s+`; its match gives up its last character when a word follows.
    group: usize,
    /// Whether the following alternative matches a single character before a word.
    takes_one: bool,
}

/// A splitter given as a regular expression.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    look_ahead: Option<LookAhead>,
    behavior: Behavior,
    /// Whether matches and the text between them change places.
    is_inverted: bool,
}

/// GPT-2's pattern as `tokenizer.json` files write it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Patterns that a hand-written rule replaces.
pub(super) const KNOWN: &[(&str, WordRule)] = &[
    (GPT2, WordRule::GPT2),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        WordRule::LLAMA3,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        WordRule::QWEN2,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        WordRule::QWEN35,
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        WordRule::GPT4O,
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        WordRule::TEKKEN,
    ),
];

impl Pattern {
    /// Returns the hand-written rule that splits as `source` does, if there is one.
    pub(crate) fn known_rule(source: &str) -> Option<WordRule> {
        let source = with_escapes(source);
        KNOWN
            .iter()
            .find(|(known, _)| *known == source)
            .map(|(_, rule)| *rule)
    }

    /// Compiles a splitter.
    ///
    /// # Errors
    /// [`TokenizerError::Pattern`] if the expression is malformed, too large or needs backtracking.
    pub(crate) fn new(source: &str, behavior: Behavior, is_inverted: bool) -> Result<Self, TokenizerError> {
        let (plain, ending) = without_look_ahead(source);
        let regex = linear(&plain).and_then(|plain| Regex::new(&plain));
        let regex = regex.map_err(|error| TokenizerError::Pattern {
            pattern: source.to_owned(),
            source: Box::new(error),
        })?;
        let look_ahead = ending.map(|takes_one| LookAhead {
            // It is the last group.
            group: regex.captures_len() - 1,
            takes_one,
        });
        Ok(Self {
            regex,
            look_ahead,
            behavior,
            is_inverted,
        })
    }

    /// Returns a splitter at every occurrence of a string.
    pub(crate) fn literal(text: &str, behavior: Behavior, is_inverted: bool) -> Result<Self, TokenizerError> {
        Self::new(&regex::escape(text), behavior, is_inverted)
    }

    /// Calls `emit` with each piece of `text`, in order.
    pub(crate) fn split<'t>(&self, text: &'t str, emit: &mut dyn FnMut(&'t str)) {
        match self.behavior {
            Behavior::Isolated => self.spans(text, &mut |span, _| emit(&text[span])),
            Behavior::Removed => self.spans(text, &mut |span, is_match| {
                if !is_match {
                    emit(&text[span]);
                }
            }),
            Behavior::Contiguous | Behavior::MergedWithPrevious => {
                let is_contiguous = matches!(self.behavior, Behavior::Contiguous);
                let joins = |was_match: bool, is_match: bool| {
                    if is_contiguous {
                        was_match == is_match
                    } else {
                        is_match && !was_match
                    }
                };
                let mut open: Option<(Range<usize>, bool)> = None;
                self.spans(text, &mut |span, is_match| match &mut open {
                    Some((last, was_match)) if joins(*was_match, is_match) => {
                        last.end = span.end;
                        *was_match = is_match;
                    }
                    _ => {
                        if let Some((last, _)) = open.replace((span, is_match)) {
                            emit(&text[last]);
                        }
                    }
                });
                if let Some((last, _)) = open {
                    emit(&text[last]);
                }
            }
            Behavior::MergedWithNext => {
                let mut matched: Option<Range<usize>> = None;
                self.spans(text, &mut |span, is_match| {
                    if is_match {
                        if let Some(last) = matched.replace(span) {
                            emit(&text[last]);
                        }
                    } else {
                        let start = matched.take().map_or(span.start, |last| last.start);
                        emit(&text[start..span.end]);
                    }
                });
                if let Some(last) = matched {
                    emit(&text[last]);
                }
            }
        }
    }

    /// Calls `emit` with each match and each stretch between matches.
    fn spans(&self, text: &str, emit: &mut dyn FnMut(Range<usize>, bool)) {
        let mut gap_start = 0;
        let mut at = 0;
        while let Some(found) = self.regex.find_at(text, at) {
            if found.is_empty() {
                match text[found.end()..].chars().next() {
                    Some(character) => at = found.end() + character.len_utf8(),
                    None => break,
                }
                continue;
            }
            let Some(end) = self.end_of(text, found.range()) else {
                at = found.end();
                continue;
            };
            if found.start() > gap_start {
                emit(gap_start..found.start(), self.is_inverted);
            }
            emit(found.start()..end, !self.is_inverted);
            gap_start = end;
            at = end;
        }
        if gap_start < text.len() {
            emit(gap_start..text.len(), self.is_inverted);
        }
    }

    /// Returns the end of a match after the look-ahead; `None` if nothing is left.
    fn end_of(&self, text: &str, found: Range<usize>) -> Option<usize> {
        let piece = &text[found.clone()];
        let is_white = |c| chars::classes(c) & chars::SPACE != 0;
        let Some(look_ahead) = self.look_ahead else {
            return Some(found.end);
        };
        if found.end == text.len() || !piece.chars().all(is_white) {
            return Some(found.end);
        }
        let last = piece.chars().next_back().expect("the match is not empty");
        let is_one = piece.len() == last.len_utf8();
        if is_one && look_ahead.takes_one {
            return Some(found.end);
        }
        // An earlier alternative, such as one for line breaks, may have matched.
        let groups = self.regex.captures_at(text, found.start);
        let is_looking = groups.is_some_and(|groups| groups.get(look_ahead.group).is_some());
        if !is_looking {
            return Some(found.end);
        }
        (!is_one).then_some(found.end - last.len_utf8())
    }
}

/// Replaces line breaks and tabs, which some files hold raw, by escapes.
fn with_escapes(source: &str) -> Cow<'_, str> {
    if !source.contains(['\r', '\n', '\t']) {
        return source.into();
    }
    let mut spelled = String::with_capacity(source.len() + 8);
    let mut is_escaped = false;
    for character in source.chars() {
        let letter = match character {
            '\r' => Some('r'),
            '\n' => Some('n'),
            '\t' => Some('t'),
            _ => None,
        };
        if letter.is_some() && !is_escaped {
            spelled.push('\\');
        }
        spelled.push(letter.unwrap_or(character));
        is_escaped = character == '\\' && !is_escaped;
    }
    spelled.into()
}

/// Replaces the `\s+(?!\S)` at a pattern's end, and the part after it, by a group `(\s+)`. Returns also whether that part matches a single
/// character.
fn without_look_ahead(source: &str) -> (Cow<'_, str>, Option<bool>) {
    for (end, takes_one) in [
        (r"\s+(?!\S)|\s+", true),
        (r"\s+(?!\S)|\s", true),
        (r"\s+(?!\S)", false),
    ] {
        let Some(head) = source.strip_suffix(end) else {
            continue;
        };
        // The look-ahead must be an alternative by itself.
        if head.is_empty() || head.ends_with('|') && !head.ends_with(r"\|") {
            return (format!(r"{head}(\s+)").into(), Some(takes_one));
        }
    }
    (source.into(), None)
}

/// Translates a pattern of Oniguruma's for an engine that does not backtrack: `^` and `$` match at each line, and possessive quantifiers
/// become greedy. For these patterns, in which each class excludes what follows it, the result is the same.
///
/// # Errors
/// More than [`MAX_LINE_END_TESTS`] possessive quantifiers stand before the end of a line.
fn linear(pattern: &str) -> Result<String, regex::Error> {
    let Ok(tree) = Parser::new().parse(pattern) else {
        // The compiler reports the error.
        return Ok(pattern.to_owned());
    };
    let changes = ast::visit(&tree, Changes::of(pattern))?;
    let mut linear = String::with_capacity(pattern.len());
    let mut done = 0;
    for (start, (end, text)) in changes {
        linear.push_str(&pattern[done..start]);
        linear.push_str(text);
        done = end;
    }
    linear.push_str(&pattern[done..]);
    Ok(linear)
}

/// Most parts of a pattern that are compiled to find whether they match a line break. Tokenizers' patterns have at most one.
const MAX_LINE_END_TESTS: usize = 16;

/// Collects replacements in a pattern: start, end and new text.
struct Changes<'p> {
    pattern: &'p str,
    /// Parts that may still be compiled.
    n_tests_left: usize,
    replaced: BTreeMap<usize, (usize, &'static str)>,
}

impl<'p> Changes<'p> {
    fn of(pattern: &'p str) -> Self {
        Self {
            pattern,
            n_tests_left: MAX_LINE_END_TESTS,
            replaced: BTreeMap::new(),
        }
    }

    fn add(&mut self, span: &Span, text: &'static str) {
        let change = (span.end.offset, text);
        self.replaced.entry(span.start.offset).or_insert(change);
    }

    /// Says whether a part of the pattern matches a line break.
    fn takes_line_breaks(&mut self, part: &Ast) -> Result<bool, regex::Error> {
        let left = self.n_tests_left.checked_sub(1);
        self.n_tests_left = left.ok_or_else(|| {
            let reason = "too many possessive quantifiers stand before the end of a line";
            regex::Error::Syntax(reason.to_owned())
        })?;
        let span = part.span();
        let part = &self.pattern[span.start.offset..span.end.offset];
        Ok(Regex::new(part).is_ok_and(|regex| regex.is_match("\n")))
    }
}

impl Visitor for Changes<'_> {
    type Output = BTreeMap<usize, (usize, &'static str)>;
    type Err = regex::Error;

    fn finish(self) -> Result<Self::Output, regex::Error> {
        Ok(self.replaced)
    }

    fn visit_pre(&mut self, part: &Ast) -> Result<(), regex::Error> {
        match part {
            Ast::Concat(parts) => {
                for pair in parts.asts.windows(2) {
                    // A greedy quantifier would give back line breaks, before which a line ends.
                    if let [before, Ast::Assertion(end)] = pair
                        && end.kind == AssertionKind::EndLine
                        && let Some((taken, _)) = possessive(before)
                        && self.takes_line_breaks(taken)?
                    {
                        self.add(&end.span, r"\z");
                    }
                }
            }
            Ast::Assertion(assertion) => match assertion.kind {
                AssertionKind::StartLine => self.add(&assertion.span, "(?m:^)"),
                AssertionKind::EndLine => self.add(&assertion.span, "(?m:$)"),
                _ => {}
            },
            part => {
                if let Some((_, plus)) = possessive(part) {
                    self.add(plus, "");
                }
            }
        }
        Ok(())
    }
}

/// Splits a possessive quantifier, which the parser reads as two quantifiers, into its operand and its plus sign.
fn possessive(part: &Ast) -> Option<(&Ast, &Span)> {
    let Ast::Repetition(outer) = part else {
        return None;
    };
    let Ast::Repetition(inner) = &*outer.ast else {
        return None;
    };
    let is_counted = matches!(inner.op.kind, RepetitionKind::Range(_));
    let is_possessive = outer.op.kind == RepetitionKind::OneOrMore && outer.greedy && !is_counted;
    is_possessive.then_some((&*inner.ast, &outer.op.span))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, text: &str, expected: &[&str]) {
        let pattern = Pattern::new(source, Behavior::Isolated, false).unwrap();
        let mut pieces = Vec::new();
        pattern.split(text, &mut |piece| pieces.push(piece));
        assert_eq!(pieces, expected, "{source:?} on {text:?}");
    }

    #[test]
    fn line_breaks_that_an_earlier_alternative_takes_stay_whole_however_it_is_spelled() {
        let words = "|\\w+|\\s+(?!\\S)|\\s+";
        for breaks in [
            r"\s*[\r\n]+",
            "\\s*[\r\n]+",
            "\\s*[\n\r]+",
            r"\s*[\n\r]+",
            r"\s*[\x0a\x0d]+",
            r"\s*\n+",
            "\\s*(?:\r?\n)+",
            r"\s*[\r\n]",
        ] {
            for source in [
                format!("{breaks}{words}"),
                format!("x|{breaks}{words}"),
                format!("(?:{breaks}){words}"),
            ] {
                check(&source, "a\n\nb", &["a", "\n\n", "b"]);
                check(&source, "a \n  b", &["a", " \n", " ", " ", "b"]);
            }
        }
        check(r"\w+|\s+(?!\S)|\s+", "a\n\nb", &["a", "\n", "\n", "b"]);
        check(r"\s+(?!\S)|\s+", "a  b", &["a", " ", " ", "b"]);
    }

    #[test]
    fn one_character_before_a_word_needs_an_alternative_of_its_own() {
        check(r"\w+|\s+(?!\S)", "a b", &["a", " ", "b"]);
        check(r"bar|\s+(?!\S)", "x bar", &["x ", "bar"]);
        check(r"bar|\s+(?!\S)", "x  bar", &["x", " ", " ", "bar"]);
        check(r"bar|\s+(?!\S)|\s+", "x bar", &["x", " ", "bar"]);
        check(r"a\|\s+", "a|  b", &["a|  ", "b"]);
    }

    #[test]
    fn lines_begin_and_end_at_line_breaks() {
        check(r"\s+$", "a \n b\n\n  ", &["a", " ", "\n b", "\n\n  "]);
        check(r"\s+$", "a\n\nb", &["a", "\n", "\nb"]);
        // A possessive quantifier gives nothing back.
        check(r"\s++$", "a\n\nb\n ", &["a\n\nb", "\n "]);
        check(r"[\s]++$", "a\n\nb\n ", &["a\n\nb", "\n "]);
        check(r" ++$", "a  \nb ", &["a", "  ", "\nb", " "]);
        check("^#+", "#a\n##b#", &["#", "a\n", "##", "b#"]);
        check(r"[$^]\$", "a$$b^$", &["a", "$$", "b", "^$"]);
    }

    #[test]
    fn the_parts_that_are_compiled_by_themselves_have_a_bound() {
        let pattern = |n| Pattern::new(&r"\pL++$|".repeat(n), Behavior::Isolated, false);
        assert!(pattern(MAX_LINE_END_TESTS).is_ok());
        assert!(pattern(MAX_LINE_END_TESTS + 1).is_err());
        assert!(pattern(100_000).is_err());
    }

    #[test]
    fn raw_line_breaks_select_the_same_rules() {
        for (source, rule) in KNOWN {
            let literal = source.replace(r"\r", "\r").replace(r"\n", "\n");
            assert_eq!(Pattern::known_rule(&literal), Some(*rule), "{source}");
        }
        assert_eq!(with_escapes("a\\\n[\t]\\\\\r"), r"a\n[\t]\\\r");
    }
}

//! [`Pattern`]: a splitter given as a regular expression.
//!
//! Separate from the hand-written rules because it takes any pattern that a `tokenizer.json` names. Invariant: matching
//! is by finite automaton, in linear time. The one look-ahead that tokenizers use, `\s+(?!\S)`, is taken out of the
//! pattern and done here; any other look-around is refused.

use std::ops::Range;

use regex::Regex;

use crate::{TokenizerError, tokenizer::chars};

use super::WordRule;

/// What becomes of the matches of a splitter, in Hugging Face's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub(crate) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// Which all-white matches give up their last character when a word follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trim {
    /// None: the pattern had no look-ahead.
    No,
    /// Those that do not end in a line break: an earlier alternative takes those that do.
    UnlessNewline,
    /// All.
    Always,
}

/// A splitter given as a regular expression.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    trim: Trim,
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
    /// The hand-written rule that splits as `source` does, if there is one.
    pub(crate) fn known_rule(source: &str) -> Option<WordRule> {
        KNOWN
            .iter()
            .find(|(known, _)| *known == source)
            .map(|(_, rule)| *rule)
    }

    /// Compiles a splitter.
    ///
    /// # Errors
    /// [`TokenizerError::Pattern`] where the expression is malformed, too large or needs backtracking.
    pub(crate) fn new(source: &str, behavior: Behavior, is_inverted: bool) -> Result<Self, TokenizerError> {
        let (linear, trim) = without_look_ahead(source);
        let regex = Regex::new(&linear).map_err(|error| TokenizerError::Pattern {
            pattern: source.to_owned(),
            source: Box::new(error),
        })?;
        Ok(Self {
            regex,
            trim,
            behavior,
            is_inverted,
        })
    }

    /// A splitter at every occurrence of a string.
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
            Behavior::Contiguous => {
                let mut open: Option<(Range<usize>, bool)> = None;
                self.spans(text, &mut |span, is_match| match &mut open {
                    Some((last, was_match)) if *was_match == is_match => last.end = span.end,
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
            Behavior::MergedWithPrevious => {
                let mut open: Option<(Range<usize>, bool)> = None;
                self.spans(text, &mut |span, is_match| match &mut open {
                    Some((last, was_match)) if is_match && !*was_match => {
                        last.end = span.end;
                        *was_match = true;
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
            if found.start() > gap_start {
                emit(gap_start..found.start(), self.is_inverted);
            }
            let end = self.trimmed_end(text, found.range());
            emit(found.start()..end, !self.is_inverted);
            gap_start = end;
            at = end;
        }
        if gap_start < text.len() {
            emit(gap_start..text.len(), self.is_inverted);
        }
    }

    fn trimmed_end(&self, text: &str, found: Range<usize>) -> usize {
        if self.trim == Trim::No || found.end == text.len() {
            return found.end;
        }
        let piece = &text[found.clone()];
        let last = piece.chars().next_back().expect("the match is not empty");
        let may_trim = chars::classes(last) & chars::SPACE != 0
            && piece.len() > last.len_utf8()
            && (self.trim == Trim::Always || !matches!(last, '\r' | '\n'))
            && piece.chars().all(|c| chars::classes(c) & chars::SPACE != 0);
        if may_trim {
            found.end - last.len_utf8()
        } else {
            found.end
        }
    }
}

/// Takes `\s+(?!\S)` out of a pattern and reads possessive quantifiers as greedy ones, which for patterns of this kind
/// (each class excludes what follows it) is the same.
fn without_look_ahead(source: &str) -> (String, Trim) {
    let (source, trim) = match source.strip_suffix(r"|\s+(?!\S)|\s+").or_else(|| {
        source
            .strip_suffix(r"|\s+(?!\S)|\s")
            .or_else(|| source.strip_suffix(r"|\s+(?!\S)"))
    }) {
        Some(head) => {
            // `\s*[\r\n]+` and `\s*[\r\n]` take every run that holds a line break, up to its last one.
            let takes_newlines = head.ends_with(r"|\s*[\r\n]+") || head.ends_with(r"|\s*[\r\n]");
            let trim = if takes_newlines {
                Trim::UnlessNewline
            } else {
                Trim::Always
            };
            (format!(r"{head}|\s+"), trim)
        }
        None => (source.to_owned(), Trim::No),
    };
    let mut linear = String::with_capacity(source.len());
    let mut is_in_class = false;
    let mut is_escaped = false;
    let mut last_quantifier = false;
    for character in source.chars() {
        if last_quantifier && character == '+' && !is_in_class {
            last_quantifier = false;
            continue;
        }
        last_quantifier = !is_escaped && !is_in_class && matches!(character, '?' | '*' | '+');
        match character {
            '[' if !is_escaped => is_in_class = true,
            ']' if !is_escaped => is_in_class = false,
            _ => {}
        }
        is_escaped = character == '\\' && !is_escaped;
        linear.push(character);
    }
    (linear, trim)
}

//! Pre-splitting: splits text into pieces, whose borders a vocabulary's merges may not cross.
//!
//! Any model may follow any splitter. Invariant: every step is linear in its text, whatever the text is; there is no
//! backtracking anywhere, so no text can stall it. A regular expression that would need backtracking is refused when
//! the tokenizer is loaded.

mod digits;
mod pattern;
mod words;

use std::borrow::Cow;

pub(crate) use digits::DigitGroups;
pub(crate) use pattern::{Behavior, Pattern};
pub(crate) use words::{Contractions, Digits, Spaces, SymbolTail, WordRule};

/// Stands for a space in SentencePiece vocabularies.
pub(crate) const METASPACE: &str = "\u{2581}";

/// When a step puts something before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepend {
    Always,
    /// Before every text but line breaks.
    UnlessLineBreaks,
    /// Only at the very start of the text.
    AtStart,
    Never,
}

/// One step of pre-splitting; each splits every piece of the previous step.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The GPT family's words.
    Words(WordRule),
    /// A regular expression.
    Pattern(Pattern),
    /// Runs of digits in groups of three, counted from the right.
    DigitGroups(DigitGroups),
    /// Spaces become [`METASPACE`]; one is put before the piece; where `split`, each begins a piece.
    Metaspace { prepend: Prepend, split: bool },
    /// A space is put before a piece that does not begin with white space.
    PrefixSpace,
    /// Cuts before each [`METASPACE`] that follows something else. Only for vocabularies in which no token holds one
    /// there, where it changes nothing but the time that merging takes.
    BeforeMetaspace,
}

/// Runs `text` through `steps` and calls `emit` with each piece. `is_start` says that the text is the input's start.
pub(crate) fn run(steps: &[Step], text: &str, is_start: bool, emit: &mut dyn FnMut(&str)) {
    let Some((step, rest)) = steps.split_first() else {
        if !text.is_empty() {
            emit(text);
        }
        return;
    };
    let base = text.as_ptr() as usize;
    let mut next = |piece: &str| {
        if rest.is_empty() {
            if !piece.is_empty() {
                emit(piece);
            }
        } else {
            run(rest, piece, is_start && piece.as_ptr() as usize == base, emit);
        }
    };
    match step {
        Step::Words(rule) => rule.split(text, &mut next),
        Step::Pattern(pattern) => pattern.split(text, &mut next),
        Step::DigitGroups(groups) => groups.split(text, &mut next),
        Step::BeforeMetaspace => split_before_metaspace(text, &mut next),
        Step::PrefixSpace => {
            if text.is_empty() || text.starts_with(' ') {
                next(text);
            } else {
                run(rest, &format!(" {text}"), is_start, emit);
            }
        }
        Step::Metaspace { prepend, split } => {
            let mut replaced: Cow<'_, str> = if text.contains(' ') {
                text.replace(' ', METASPACE).into()
            } else {
                text.into()
            };
            let prepends = match prepend {
                Prepend::Always => true,
                Prepend::UnlessLineBreaks => !text.trim_start_matches('\n').is_empty(),
                Prepend::AtStart => is_start,
                Prepend::Never => false,
            };
            if prepends && !replaced.is_empty() && !replaced.starts_with(METASPACE) {
                replaced.to_mut().insert_str(0, METASPACE);
            }
            if *split {
                let mut start = 0;
                for (at, _) in replaced.match_indices(METASPACE) {
                    if at > start {
                        run(rest, &replaced[start..at], is_start && start == 0, emit);
                    }
                    start = at;
                }
                run(rest, &replaced[start..], is_start && start == 0, emit);
            } else {
                run(rest, &replaced, is_start, emit);
            }
        }
    }
}

fn split_before_metaspace<'t>(text: &'t str, emit: &mut dyn FnMut(&'t str)) {
    let mut start = 0;
    let mut run_end = 0;
    for (at, found) in text.match_indices(METASPACE) {
        if at > run_end && at > start {
            emit(&text[start..at]);
            start = at;
        }
        run_end = at + found.len();
    }
    if start < text.len() {
        emit(&text[start..]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces(steps: &[Step], text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        run(steps, text, true, &mut |piece| pieces.push(piece.to_owned()));
        pieces
    }

    #[test]
    fn metaspace_splits_before_each_space() {
        let step = Step::Metaspace {
            prepend: Prepend::Always,
            split: true,
        };
        assert_eq!(pieces(&[step], "a  b c"), ["▁a", "▁", "▁b", "▁c"]);
    }

    #[test]
    fn lines_begin_with_a_space_and_line_breaks_do_not() {
        let lines = Pattern::new(r"[^\n]+|[\n]+", Behavior::Isolated, false).unwrap();
        let step = Step::Metaspace {
            prepend: Prepend::UnlessLineBreaks,
            split: true,
        };
        assert_eq!(
            pieces(&[Step::Pattern(lines), step], "a b\n\n c\n"),
            ["▁a", "▁b", "\n\n", "▁c", "\n"]
        );
    }

    #[test]
    fn before_metaspace_keeps_runs_of_spaces_whole() {
        assert_eq!(
            pieces(&[Step::BeforeMetaspace], "▁▁a▁b▁▁c▁"),
            ["▁▁a", "▁b", "▁▁c", "▁"]
        );
    }

    #[test]
    fn behaviors_keep_drop_and_merge_matches() {
        for (behavior, expected) in [
            (Behavior::Isolated, vec!["a", "-", "-", "b", "-"]),
            (Behavior::Removed, vec!["a", "b"]),
            (Behavior::Contiguous, vec!["a", "--", "b", "-"]),
            (Behavior::MergedWithPrevious, vec!["a-", "-", "b-"]),
            (Behavior::MergedWithNext, vec!["a", "-", "-b", "-"]),
        ] {
            let step = Step::Pattern(Pattern::new("-", behavior, false).unwrap());
            assert_eq!(pieces(&[step], "a--b-"), expected, "{behavior:?}");
        }
    }

    #[test]
    fn look_around_is_refused() {
        for source in ["(?=a)b", "(?<!a)b", r"(a)\1", r"\s+(?!\S)|x"] {
            assert!(
                Pattern::new(source, Behavior::Isolated, false).is_err(),
                "{source}"
            );
        }
    }

    /// Splits by a pattern with look-ahead in a backtracking engine; matches are separate pieces.
    fn backtracked(regex: &fancy_regex::Regex, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        let mut done = 0;
        for found in regex
            .find_iter(text)
            .map(Result::unwrap)
            .filter(|found| found.end() > found.start())
        {
            pieces.push(text[done..found.start()].to_owned());
            pieces.push(found.as_str().to_owned());
            done = found.end();
        }
        pieces.push(text[done..].to_owned());
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// Returns rules and the patterns that they replace, in addition to those in files.
    fn rules() -> Vec<(String, Vec<Step>)> {
        let named = |name: &str| crate::tokenizer::pre_tokenizers::find(name).unwrap().steps;
        let spaces = r"\s*[\r\n]+|\s+(?!\S)|\s+";
        let contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|";
        let words = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}";
        let symbols = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|";
        let powers = [512, 256, 128, 64, 32, 16, 8, 4]
            .map(|n| format!(r"\s{{{n}}}(?!\S)|"))
            .concat();
        let mut rules: Vec<(String, Vec<Step>)> = pattern::KNOWN
            .iter()
            .map(|(source, rule)| ((*source).to_owned(), vec![Step::Words(*rule)]))
            .collect();
        rules.extend([
            (
                format!(r"{contractions}{words}{{1,3}}{symbols}\s*[\r\n]+|{powers}\s{{1,2}}(?!\S)|\s{{1}}"),
                named("jais-2"),
            ),
            (
                format!(r"'(?i:[sdmt]|ll|ve|re)|{words}{symbols}\s*[\r\n]|\s+(?!\S)|\s+"),
                named("bailingmoe"),
            ),
            (
                format!(r"{contractions}{words}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{spaces}"),
                named("seed-coder"),
            ),
            (format!("{words}{symbols}{spaces}"), named("ufakzeka")),
            (
                r"\d{1,3}(?=(?:\d{3})*\b)".to_owned(),
                vec![Step::DigitGroups(DigitGroups::BeforeWordEnd)],
            ),
        ]);
        // Patterns with look-ahead that are taken to pieces rather than written by hand.
        for source in crate::tokenizer::pre_tokenizers::tests::LOOK_AHEAD {
            let pattern = Pattern::new(source, Behavior::Isolated, false).unwrap();
            rules.push(((*source).to_owned(), vec![Step::Pattern(pattern)]));
        }
        rules
    }

    fn texts() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            4 => "[a-zA-Z']{1,6}",
            3 => " {1,5}",
            3 => "[ \t\r\n\u{a0}\u{3000}]{1,4}",
            1 => " {1,40}",
            2 => "[0-9²½]{1,9}",
            2 => "[!-/:-@\\[-`{-~]{1,4}",
            2 => "[äÄßǅʰªºא日本한ไ\u{301}\u{93f}ſ_]{1,5}",
            1 => "\\PC{1,3}",
        ];
        prop::collection::vec(part, 0..10).prop_map(|parts| parts.concat())
    }

    #[test]
    fn splitters_split_as_backtracking_does() {
        let rules: Vec<_> = rules()
            .into_iter()
            .map(|(source, steps)| (fancy_regex::Regex::new(&source).unwrap(), steps))
            .collect();
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: 500,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        runner
            .run(&texts(), |text| {
                for (regex, steps) in &rules {
                    prop_assert_eq!(pieces(steps, &text), backtracked(regex, &text), "{}", regex);
                }
                Ok(())
            })
            .unwrap();
    }
}

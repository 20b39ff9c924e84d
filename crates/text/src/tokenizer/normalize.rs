//! [`Normalizer`]: a change of text before it is split.
//!
//! A tokenizer has any number of these, in order. Invariant: text that needs no change is not copied, and each
//! normalizer is linear in its text.

use std::borrow::Cow;

use regex::Regex;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfkc_quick};

use super::{
    chars::{self, CONTROL, NONSPACING_MARK, SPACE},
    charsmap::Charsmap,
    split::METASPACE,
};

/// One step of normalization.
#[derive(Clone, Debug)]
pub(crate) enum Normalizer {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    /// Drops nonspacing marks.
    StripAccents,
    /// Drops white space at the start, the end or both.
    Strip {
        left: bool,
        right: bool,
    },
    /// Puts a text before any text that is not empty.
    Prepend(String),
    Replace {
        from: String,
        to: String,
    },
    ReplacePattern {
        from: Regex,
        to: String,
    },
    Bert(BertNormalizer),
    Charsmap(Charsmap),
    /// SentencePiece's treatment of spaces: each becomes [`METASPACE`]. With `merges`, runs become one, and those at
    /// the end are dropped; with `prepends`, one is put before the text.
    SentencePieceSpaces {
        prepends: bool,
        merges: bool,
    },
}

/// BERT's normalization.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent flags of the file format"
)]
pub(crate) struct BertNormalizer {
    /// Drops control characters and replaces all white space by spaces.
    pub(crate) cleans: bool,
    /// Puts spaces around Chinese characters.
    pub(crate) splits_chinese: bool,
    pub(crate) strips_accents: bool,
    pub(crate) lowercases: bool,
}

impl Normalizer {
    /// Applies this step.
    pub(crate) fn apply<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        match self {
            Self::Nfc if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes => text,
            Self::Nfc => text.nfc().collect(),
            Self::Nfkc if text.is_ascii() || is_nfkc_quick(text.chars()) == IsNormalized::Yes => text,
            Self::Nfkc => text.nfkc().collect(),
            Self::Nfd | Self::Nfkd | Self::StripAccents if text.is_ascii() => text,
            Self::Nfd => text.nfd().collect(),
            Self::Nfkd => text.nfkd().collect(),
            Self::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Self::StripAccents => without_accents(text.chars()),
            Self::Strip { left, right } => {
                let stripped = if *left { text.trim_start() } else { &text };
                let stripped = if *right { stripped.trim_end() } else { stripped };
                if stripped.len() == text.len() {
                    text
                } else {
                    stripped.to_owned().into()
                }
            }
            Self::Prepend(_) if text.is_empty() => text,
            Self::Prepend(prefix) => format!("{prefix}{text}").into(),
            Self::Replace { from, .. } if !text.contains(from.as_str()) => text,
            Self::Replace { from, to } => text.replace(from, to).into(),
            Self::ReplacePattern { from, to } => match from.replace_all(&text, regex::NoExpand(to)) {
                Cow::Borrowed(_) => text,
                Cow::Owned(replaced) => replaced.into(),
            },
            Self::Bert(bert) => bert.apply(&text).into(),
            Self::Charsmap(charsmap) => charsmap.apply(&text).into(),
            Self::SentencePieceSpaces { prepends, merges } => {
                sentencepiece_spaces(&text, *prepends, *merges).into()
            }
        }
    }
}

fn without_accents<'t>(characters: impl Iterator<Item = char>) -> Cow<'t, str> {
    characters
        .filter(|&c| chars::classes(c) & NONSPACING_MARK == 0)
        .collect()
}

fn sentencepiece_spaces(text: &str, prepends: bool, merges: bool) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 2);
    let mut is_in_word = false;
    let mut has_prefix = false;
    for character in text.chars() {
        if character == ' ' {
            is_in_word = false;
            if !merges {
                out.push_str(METASPACE);
            }
            continue;
        }
        if !is_in_word {
            is_in_word = true;
            if (prepends && !has_prefix) || merges {
                out.push_str(METASPACE);
                has_prefix = true;
            }
        }
        out.push(character);
    }
    out
}

impl BertNormalizer {
    fn apply(self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for character in text.chars() {
            let class = chars::classes(character);
            // Line breaks and tabs are spaces; other control characters go, also those that Unicode calls white space.
            let is_control = class & CONTROL != 0 && !matches!(character, '\t' | '\n' | '\r');
            if self.cleans && (is_control || character == '\u{fffd}') {
                continue;
            }
            if self.cleans && class & SPACE != 0 {
                out.push(' ');
            } else if self.splits_chinese && is_chinese(character) {
                out.extend([' ', character, ' ']);
            } else {
                out.push(character);
            }
        }
        if self.strips_accents && !out.is_ascii() {
            out = without_accents(out.nfd()).into_owned();
        }
        if self.lowercases {
            if out.is_ascii() {
                out.make_ascii_lowercase();
            } else {
                out = out.chars().flat_map(char::to_lowercase).collect();
            }
        }
        out
    }
}

/// Returns whether BERT treats a character as Chinese. The range that begins at U+2B920 is that of Hugging Face's code; BERT's
/// own begins at U+2B820.
fn is_chinese(character: char) -> bool {
    matches!(
        character as u32,
        0x4e00..=0x9fff
            | 0x3400..=0x4dbf
            | 0x2_0000..=0x2_a6df
            | 0x2_a700..=0x2_b73f
            | 0x2_b740..=0x2_b81f
            | 0x2_b920..=0x2_ceaf
            | 0xf900..=0xfaff
            | 0x2_f800..=0x2_fa1f
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(normalizer: &Normalizer, text: &str, expected: &str) {
        assert_eq!(normalizer.apply(text.into()), expected);
    }

    #[test]
    fn nfc_composes() {
        check(&Normalizer::Nfc, "e\u{301}", "é");
    }

    #[test]
    fn bert_cleans_splits_strips_and_lowercases() {
        let bert = BertNormalizer {
            cleans: true,
            splits_chinese: true,
            strips_accents: true,
            lowercases: true,
        };
        check(&Normalizer::Bert(bert), "É\u{0}a\tÄ中b", "ea a 中 b");
        check(
            &Normalizer::Bert(bert),
            "a\u{b}b\u{c}c\u{85}d\u{2028}e\u{fffd}\r\n",
            "abcd e  ",
        );
    }

    #[test]
    fn sentencepiece_spaces_merge_and_prefix() {
        let spaces = |prepends, merges| Normalizer::SentencePieceSpaces { prepends, merges };
        check(&spaces(true, true), "  a  b ", "▁a▁b");
        check(&spaces(false, false), "a  b ", "a▁▁b▁");
        check(&spaces(true, false), "a b", "▁a▁b");
    }
}

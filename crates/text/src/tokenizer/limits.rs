//! Limits on how the parts of a tokenizer file may change a text, checked once when the tokenizer is built.
//!
//! The limits hold for all parts together: six replacements of one letter by fifty turn five letters into gigabytes.
//! Invariant: a built tokenizer turns a text of `n` bytes into at most `MAX_FACTOR * n + MAX_ADDED_BYTES` bytes before it
//! is split.

use super::{Tokenizer, normalize::Normalizer};
use crate::TokenizerError;

/// Largest number of parts of one kind. Real files have up to ten.
const MAX_PARTS: usize = 64;
/// The largest factor by which normalizers may multiply the length of a text. It is compared with an upper
/// bound: for real files that is up to a few hundred, although their texts hardly grow by more than 3.
const MAX_FACTOR: f64 = 1024.0;
/// Largest number of bytes that normalizers may put around a text.
const MAX_ADDED_BYTES: f64 = 65_536.0;
/// The largest factor by which the decoder's replacements may multiply the length of a token; real ones make
/// tokens shorter.
const MAX_DECODER_FACTOR: f64 = 16.0;
/// Largest number of tokens around a text. Real files have two or three.
const MAX_AROUND: usize = 1024;
/// Largest number of bytes of all added tokens after normalization.
const MAX_ADDED_TOKENS_BYTES: usize = 64 << 20;

/// A bound on the length of a text of `n` bytes: `factor * n + added_bytes`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Growth {
    factor: f64,
    added_bytes: f64,
    /// Growth by Unicode forms since other text was added: a second form adds nothing to a first.
    form_factor: f64,
}

impl Growth {
    const NONE: Self = Self {
        factor: 1.0,
        added_bytes: 0.0,
        form_factor: 1.0,
    };

    fn multiply(self, factor: f64) -> Self {
        Self {
            factor: self.factor * factor,
            added_bytes: self.added_bytes * factor,
            ..self
        }
    }

    /// As [`Self::multiply`] with text that was not there before.
    fn replace(self, factor: f64) -> Self {
        Self {
            form_factor: 1.0,
            ..self.multiply(factor.max(1.0))
        }
    }

    fn form(self, factor: f64) -> Self {
        let grown = self.form_factor.max(factor);
        Self {
            form_factor: grown,
            ..self.multiply(grown / self.form_factor)
        }
    }

    fn add(self, n_bytes: usize) -> Self {
        Self {
            added_bytes: self.added_bytes + n_bytes as f64,
            form_factor: 1.0,
            ..self
        }
    }

    /// Returns the bound after `normalizer` as well.
    fn after(self, normalizer: &Normalizer) -> Self {
        match normalizer {
            // The most that UTF-8 text grows by, from Unicode's FAQ on normalization.
            Normalizer::Nfc | Normalizer::Nfd => self.form(3.0),
            Normalizer::Nfkc | Normalizer::Nfkd => self.form(11.0),
            // `Ⱥ` of two bytes becomes `ⱥ` of three.
            Normalizer::Lowercase => self.multiply(1.5),
            Normalizer::StripAccents | Normalizer::Strip { .. } => self,
            Normalizer::Prepend(prefix) => self.add(prefix.len()),
            Normalizer::Replace { from, to } => self.replace(to.len() as f64 / from.len().max(1) as f64),
            Normalizer::ReplacePattern { from, to } => {
                let min_len = regex_syntax::parse(from.as_str())
                    .ok()
                    .and_then(|hir| hir.properties().minimum_len())
                    .unwrap_or(0);
                match min_len {
                    // It may match before each character and at the end.
                    0 => self.replace(1.0 + to.len() as f64).add(to.len()),
                    _ => self.replace(to.len() as f64 / min_len as f64),
                }
            }
            // Two spaces around a Chinese character of three bytes, a decomposition, and small letters.
            Normalizer::Bert(_) => self.multiply(5.0 / 3.0).form(3.0).multiply(1.5),
            Normalizer::Charsmap(charsmap) => self.replace(charsmap.longest_replacement() as f64),
            // A space becomes a character of three bytes, and so does the start of each word.
            Normalizer::SentencePieceSpaces { .. } => self.replace(4.0).add(3),
        }
    }
}

/// Checks normalizers and the tokens around a text.
pub(super) fn check(tokenizer: &Tokenizer) -> Result<(), TokenizerError> {
    check_parts("normalizers", tokenizer.normalizers.len())?;
    check_parts("pre-tokenizers", tokenizer.steps.len())?;
    check_around(tokenizer.prefix.len() + tokenizer.suffix.len())?;
    let growth = tokenizer.normalizers.iter().fold(Growth::NONE, Growth::after);
    if growth.added_bytes > MAX_ADDED_BYTES {
        return Err(TokenizerError::AddedText {
            n_bytes: growth.added_bytes,
            maximum: MAX_ADDED_BYTES,
        });
    }
    check_factor("normalizers", growth.factor, MAX_FACTOR)
}

/// Checks a number of parts of one kind, before more are added.
pub(super) fn check_parts(what: &'static str, found: usize) -> Result<(), TokenizerError> {
    check_count(what, found, MAX_PARTS)
}

/// Checks the decoder's replacements, which are applied to each token of the vocabulary.
pub(super) fn check_decoder(replacements: &[(String, String)]) -> Result<(), TokenizerError> {
    check_parts("decoders", replacements.len())?;
    let factor = (replacements.iter())
        .map(|(from, to)| (to.len() as f64 / from.len().max(1) as f64).max(1.0))
        .product();
    check_factor("decoders", factor, MAX_DECODER_FACTOR)
}

/// Checks the ids that one part of the post-processor puts around a text, before more are joined to them.
pub(super) fn check_around(n_ids: usize) -> Result<(), TokenizerError> {
    check_count("tokens around each text", n_ids, MAX_AROUND)
}

/// Checks the length of all added tokens together.
pub(super) fn check_added_tokens(n_bytes: usize) -> Result<(), TokenizerError> {
    check_count(
        "bytes of normalized added tokens",
        n_bytes,
        MAX_ADDED_TOKENS_BYTES,
    )
}

fn check_count(what: &'static str, found: usize, maximum: usize) -> Result<(), TokenizerError> {
    if found > maximum {
        return Err(TokenizerError::TooMany { what, found, maximum });
    }
    Ok(())
}

fn check_factor(what: &'static str, factor: f64, maximum: f64) -> Result<(), TokenizerError> {
    if factor > maximum {
        return Err(TokenizerError::Growth {
            what,
            factor,
            maximum,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(normalizers: &[Normalizer], expected: (f64, f64)) {
        let growth = normalizers.iter().fold(Growth::NONE, Growth::after);
        assert_eq!((growth.factor, growth.added_bytes), expected);
    }

    fn replace(from: &str, to: &str) -> Normalizer {
        Normalizer::Replace {
            from: from.into(),
            to: to.into(),
        }
    }

    #[test]
    fn replacements_multiply_and_prefixes_add() {
        check(&[replace("e", "ee"), replace("ee", "eee")], (3.0, 0.0));
        check(&[replace("long", "s")], (1.0, 0.0));
        check(&[Normalizer::Prepend("▁".into()), replace(" ", "▁")], (3.0, 9.0));
    }

    #[test]
    fn a_second_form_adds_nothing_unless_text_came_in_between() {
        check(&[Normalizer::Nfd, Normalizer::Nfkd, Normalizer::Nfc], (11.0, 0.0));
        check(&[Normalizer::Nfd, replace("a", "b"), Normalizer::Nfd], (9.0, 0.0));
    }

    #[test]
    fn a_pattern_that_matches_nothing_counts_each_place() {
        let pattern = |from: &str| Normalizer::ReplacePattern {
            from: regex::Regex::new(from).unwrap(),
            to: "ab".into(),
        };
        check(&[pattern("x*")], (3.0, 2.0));
        check(&[pattern(" {2,}")], (1.0, 0.0));
    }

    /// The bound holds: no text grows by more.
    #[test]
    fn texts_stay_below_the_bound() {
        let chain = [
            Normalizer::Prepend("▁".into()),
            Normalizer::Nfkd,
            replace("a", "bab"),
            Normalizer::Lowercase,
            Normalizer::SentencePieceSpaces {
                prepends: true,
                merges: true,
            },
        ];
        let growth = chain.iter().fold(Growth::NONE, Growth::after);
        for text in ["\u{fdfa}", "a", "ȺȺ", "a b c", "각"] {
            let text = text.repeat(100);
            let out = chain
                .iter()
                .fold(text.as_str().into(), |text, step| step.apply(text));
            assert!(out.len() as f64 <= growth.factor * text.len() as f64 + growth.added_bytes);
        }
    }
}

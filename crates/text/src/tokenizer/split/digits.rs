//! [`DigitGroups`]: splits runs of digits into groups of three, counted from the right.
//!
//! The patterns that it replaces (`\d{1,3}(?=(?:\d{3})*\b)` and similar ones) look ahead over the whole run at every
//! group; here a run is read once.

use crate::tokenizer::chars::{Classes, DECIMAL, NUMBER, WORD};

/// How runs of digits are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigitGroups {
    /// Every run of `\p{N}`.
    Always,
    /// Runs of `\d` that end a word; other digits stay with the text around them.
    BeforeWordEnd,
}

impl DigitGroups {
    /// Calls `emit` with each group and with the text between runs.
    pub(crate) fn split<'t>(self, text: &'t str, emit: &mut dyn FnMut(&'t str)) {
        let classes = Classes::of(text);
        let digit = match self {
            Self::Always => NUMBER,
            Self::BeforeWordEnd => DECIMAL,
        };
        let mut gap_start = 0;
        let mut at = 0;
        while at < text.len() {
            let (class, n_bytes) = classes.at(at);
            if class & digit == 0 {
                at += n_bytes;
                continue;
            }
            let end = classes.run_end(at, digit, 0);
            if self == Self::BeforeWordEnd && classes.at(end).0 & WORD != 0 {
                at = end;
                continue;
            }
            if at > gap_start {
                emit(&text[gap_start..at]);
            }
            let n_digits = text[at..end].chars().count();
            let mut n_group = (n_digits - 1) % 3 + 1;
            while at < end {
                let n_bytes = text[at..end]
                    .chars()
                    .take(n_group)
                    .map(char::len_utf8)
                    .sum::<usize>();
                emit(&text[at..at + n_bytes]);
                at += n_bytes;
                n_group = 3;
            }
            gap_start = end;
        }
        if gap_start < text.len() {
            emit(&text[gap_start..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(groups: DigitGroups, text: &str, expected: &[&str]) {
        let mut pieces = Vec::new();
        groups.split(text, &mut |piece| pieces.push(piece));
        assert_eq!(pieces, expected);
    }

    #[test]
    fn groups_count_from_the_right() {
        check(
            DigitGroups::Always,
            "a1234567b 12",
            &["a", "1", "234", "567", "b ", "12"],
        );
    }

    #[test]
    fn runs_before_a_letter_stay_where_the_rule_wants_a_word_end() {
        check(DigitGroups::BeforeWordEnd, "1234 5678x", &["1", "234", " 5678x"]);
    }
}

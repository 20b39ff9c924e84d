//! [`LineBounds`]: ends an answer at a line, as editors ask `/infill` to: at one that is indented too little,
//! or at the first new one after a time.
//!
//! Streamed and whole answers end alike. Invariant: the shown text is a beginning of the generated text.

use std::time::{Duration, Instant};

/// Where an answer ends, and how far it is shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineBounds {
    /// Spaces and tabs that each line after the first begins with.
    n_indent: usize,
    /// After so long from the first text, the next new line is the last.
    limit: Option<Duration>,
    began: Option<Instant>,
    /// Spaces and tabs of a line whose first other character has not come; `None` in the middle of a line.
    n_blank: Option<usize>,
    has_ended: bool,
}

impl LineBounds {
    pub(crate) fn new(n_indent: usize, limit: Option<Duration>) -> Self {
        Self {
            n_indent,
            limit,
            ..Self::default()
        }
    }

    /// Whether the answer has ended here.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes new text, and returns the part of it that is shown.
    pub(crate) fn take<'t>(&mut self, text: &'t str, now: Instant) -> &'t str {
        if !text.is_empty() {
            self.began.get_or_insert(now);
        }
        for (at, c) in text.char_indices() {
            if self.has_ended {
                return &text[..at];
            }
            self.take_char(c, now);
            if self.has_ended && c != '\n' {
                // The character that was indented too little is not shown.
                return &text[..at];
            }
        }
        text
    }

    fn take_char(&mut self, c: char, now: Instant) {
        match (c, self.n_blank) {
            ('\n', _) => {
                self.n_blank = Some(0);
                let elapsed = self.began.map(|began| now.duration_since(began));
                self.has_ended = elapsed
                    .zip(self.limit)
                    .is_some_and(|(elapsed, limit)| elapsed > limit);
            }
            (' ' | '\t', Some(n_blank)) => self.n_blank = Some(n_blank + 1),
            (_, Some(n_blank)) => {
                self.has_ended = n_blank < self.n_indent;
                self.n_blank = None;
            }
            (_, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(n_indent: usize, text: &str, expected: &str) {
        for n_bytes in [1, 3, text.len()] {
            let mut bounds = LineBounds::new(n_indent, None);
            let mut shown = String::new();
            for piece in text.as_bytes().chunks(n_bytes) {
                if !bounds.has_ended() {
                    shown.push_str(bounds.take(std::str::from_utf8(piece).expect("ASCII"), Instant::now()));
                }
            }
            assert_eq!(shown, expected, "{text:?} by {n_bytes}");
            assert_eq!(bounds.has_ended(), text != expected, "{text:?} by {n_bytes}");
        }
    }

    #[test]
    fn a_line_that_is_indented_too_little_is_not_shown() {
        check(0, "a\nb", "a\nb");
        check(2, "a\n  b\n\n\tc\n", "a\n  b\n\n\t");
        check(2, "a\n  b\n\n   c\n", "a\n  b\n\n   c\n");
        check(1, "a\n b\nc", "a\n b\n");
    }

    #[test]
    fn after_its_time_an_answer_ends_with_a_line() {
        let mut bounds = LineBounds::new(0, Some(Duration::from_millis(5)));
        let began = Instant::now();
        assert_eq!(bounds.take("one\ntwo", began), "one\ntwo");
        let later = began + Duration::from_millis(6);
        assert_eq!(bounds.take(" three", later), " three");
        assert!(!bounds.has_ended());
        assert_eq!(bounds.take(" four\nfive", later), " four\n");
        assert!(bounds.has_ended());
    }
}

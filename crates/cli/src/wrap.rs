//! [`Wrap`]: breaks lines between words, before the terminal breaks them inside words.
//!
//! Text arrives in pieces that may end inside a word. Invariant: only line breaks and the spaces before them
//! change; lines of code stay as they are.

use console::measure_text_width;

/// Breaks text that comes in pieces.
pub(crate) struct Wrap {
    /// Columns of the terminal; `None` breaks nothing.
    n_columns: Option<usize>,
    column: usize,
    /// The number of spaces before the current word.
    n_spaces: usize,
    word: String,
    /// The beginning of the line, until it is clear whether the line is code.
    line_start: String,
    is_fenced: bool,
}

impl Wrap {
    pub(crate) fn new(n_columns: Option<usize>) -> Self {
        Self {
            n_columns,
            column: 0,
            n_spaces: 0,
            word: String::new(),
            line_start: String::new(),
            is_fenced: false,
        }
    }

    /// Takes a piece, and returns the text that can be shown now: the last word waits for its end.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        let Some(n_columns) = self.n_columns else {
            return piece.to_owned();
        };
        let mut out = String::new();
        for c in piece.chars() {
            match c {
                '\n' => {
                    self.flush(&mut out, n_columns);
                    out.extend(std::iter::repeat_n(' ', self.n_spaces));
                    out.push('\n');
                    self.end_line();
                }
                _ if self.is_code(c) => {
                    self.flush(&mut out, n_columns);
                    out.extend(std::iter::repeat_n(' ', self.n_spaces));
                    self.n_spaces = 0;
                    out.push(c);
                }
                ' ' => {
                    self.flush(&mut out, n_columns);
                    self.n_spaces += 1;
                }
                _ => {
                    self.word.push(c);
                    // Text without spaces may break anywhere, and so must a word as wide as the terminal.
                    let is_wide = measure_text_width(c.encode_utf8(&mut [0; 4])) > 1;
                    if is_wide || measure_text_width(&self.word) >= n_columns {
                        self.flush(&mut out, n_columns);
                    }
                }
            }
        }
        out
    }

    /// Returns the rest.
    pub(crate) fn finish(&mut self) -> String {
        let mut out = String::new();
        if let Some(n_columns) = self.n_columns {
            self.flush(&mut out, n_columns);
        }
        out
    }

    /// Whether a character of this line belongs to code: in a fenced block, or behind an indent of four.
    fn is_code(&mut self, c: char) -> bool {
        if self.line_start.len() < 4 {
            self.line_start.push(c);
        }
        self.is_fenced
            || self.line_start.starts_with("```")
            || self.line_start.starts_with("    ")
            || c == '\t'
    }

    fn end_line(&mut self) {
        if self.line_start.starts_with("```") {
            self.is_fenced = !self.is_fenced;
        }
        self.line_start.clear();
        self.column = 0;
        self.n_spaces = 0;
    }

    /// Shows the word, on the next line if it does not fit on this one.
    fn flush(&mut self, out: &mut String, n_columns: usize) {
        if self.word.is_empty() {
            return;
        }
        let width = measure_text_width(&self.word);
        if self.column > 0 && self.column + self.n_spaces + width > n_columns {
            out.push('\n');
            self.column = 0;
        } else {
            out.extend(std::iter::repeat_n(' ', self.n_spaces));
            self.column += self.n_spaces;
        }
        self.column += width;
        self.n_spaces = 0;
        out.push_str(&self.word);
        self.word.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(text: &str, n_columns: usize, piece_chars: usize) -> String {
        let mut wrap = Wrap::new(Some(n_columns));
        let mut out = String::new();
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(piece_chars) {
            out.push_str(&wrap.push(&piece.iter().collect::<String>()));
        }
        out + &wrap.finish()
    }

    #[test]
    fn lines_break_between_words_however_the_pieces_fall() {
        for (text, expected) in [
            ("one two three", "one two\nthree"),
            ("one two th", "one two th"),
            ("one\n\n  two three", "one\n\n  two\nthree"),
            ("incomprehensible", "incomprehe\nnsible"),
            ("a incomprehensible", "a\nincomprehe\nnsible"),
            ("你好你好你好", "你好你好你\n好"),
            ("    let code = long;", "    let code = long;"),
            (
                "```\nlet code = long;\n```\none two three",
                "```\nlet code = long;\n```\none two\nthree",
            ),
            ("a  b ", "a  b"),
        ] {
            for piece_chars in [1, 2, 3, 100] {
                assert_eq!(
                    wrapped(text, 10, piece_chars),
                    expected,
                    "{text:?} by {piece_chars}"
                );
            }
        }
    }

    #[test]
    fn without_a_width_nothing_changes() {
        assert_eq!(Wrap::new(None).push("one two three "), "one two three ");
    }
}

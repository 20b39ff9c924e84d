//! [`hanging`]: wraps a whole text between words, with continuation lines below its last column.
//!
//! [`crate::wrap`], in contrast, takes text in pieces, which may be Markdown. Notes, help, tables and the log
//! of a terminal are wrapped here. Invariant: only spaces and line breaks change; no word is broken, even if
//! it is wider than the terminal.

use console::{Term, measure_text_width};

/// Columns of help where no terminal says how many there are, and at most.
pub(crate) const MAX_HELP_COLUMNS: usize = 100;

/// Returns the columns of a terminal; `None` for a file or a pipe.
pub(crate) fn columns(terminal: &Term) -> Option<usize> {
    let (_, n_columns) = terminal.size_checked()?;
    Some(usize::from(n_columns)).filter(|&n_columns| n_columns > 0)
}

/// Breaks the lines of a text to `n_columns`; `None` leaves them as they are.
pub(crate) fn hanging(text: &str, n_columns: Option<usize>) -> String {
    let Some(n_columns) = n_columns else {
        return text.to_owned();
    };
    let lines: Vec<String> = (text.split('\n'))
        .map(|line| hanging_at(line, Some(n_columns), indent(line, n_columns)))
        .collect();
    lines.join("\n")
}

/// Breaks one line as [`hanging`] does, and continues it at column `indent`.
pub(crate) fn hanging_at(line: &str, n_columns: Option<usize>, indent: usize) -> String {
    let Some(n_columns) = n_columns.filter(|&n_columns| measure_text_width(line) > n_columns) else {
        return line.to_owned();
    };
    let mut out = String::with_capacity(line.len() + indent);
    let (mut column, mut n_spaces, mut has_word) = (0, 0, false);
    for (idx, word) in line.split(' ').enumerate() {
        n_spaces += usize::from(idx > 0);
        if word.is_empty() {
            continue;
        }
        let width = measure_text_width(word);
        if has_word && column + n_spaces + width > n_columns {
            out.push('\n');
            n_spaces = indent;
            column = 0;
        }
        out.extend(std::iter::repeat_n(' ', n_spaces));
        out.push_str(word);
        column += n_spaces + width;
        (n_spaces, has_word) = (0, true);
    }
    out
}

/// Returns the column below which a line continues: its last one after two or more spaces, or its indent where that is too far right.
fn indent(line: &str, n_columns: usize) -> usize {
    let begin = line.len() - line.trim_start_matches(' ').len();
    let columns = line.match_indices("  ").map(|(at, _)| {
        let rest = &line[at..];
        at + rest.len() - rest.trim_start_matches(' ').len()
    });
    let widths = columns.map(|at| measure_text_width(&line[..at]));
    let fits = |&width: &usize| width <= n_columns / 2;
    widths.filter(fits).last().unwrap_or(begin.min(n_columns / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_continues_below_its_last_column() {
        for (line, n_columns, expected) in [
            ("one two three", 8, "one two\nthree"),
            ("one two", 7, "one two"),
            ("  one two three", 9, "  one two\n  three"),
            (
                "CPU   ok   one two three four",
                22,
                "CPU   ok   one two\n           three four",
            ),
            // The column is beyond the middle.
            ("a long name  one two three", 14, "a long name\none two three"),
            (
                "/usr/share/incomprehensible name",
                12,
                "/usr/share/incomprehensible\nname",
            ),
            ("a\n\nb", 1, "a\n\nb"),
        ] {
            assert_eq!(hanging(line, Some(n_columns)), expected, "{line:?}");
        }
        assert_eq!(hanging("one two three", None), "one two three");
    }

    #[test]
    fn colours_take_no_columns() {
        let line = "\u{1b}[1mone\u{1b}[0m two three";
        assert_eq!(hanging(line, Some(8)), "\u{1b}[1mone\u{1b}[0m two\nthree");
    }
}

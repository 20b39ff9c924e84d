//! [`note!`]: lines for people on standard error.
//!
//! Separate because a note that cannot be written must not end the work: standard error may be closed or full, and the
//! standard macros panic then.

use std::{
    fmt,
    io::{self, Write as _},
};

use crate::wrap::Wrap;

/// Writes a line to standard error, formatted as by `println!`. A line that cannot be written is dropped.
macro_rules! note {
    ($($arg:tt)*) => {
        $crate::note::write(format_args!($($arg)*))
    };
}
pub(crate) use note;

/// Writes a line; called by [`note!`]. On a terminal it wraps between words.
pub(crate) fn write(line: fmt::Arguments<'_>) {
    let line = wrapped(&line.to_string(), columns());
    // One write, so that lines of several processes do not mix.
    let _unwritten = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// Returns the width of the terminal on standard error, if there is one.
fn columns() -> Option<usize> {
    let (_, n_columns) = console::Term::stderr().size_checked()?;
    Some(usize::from(n_columns)).filter(|&n_columns| n_columns > 0)
}

fn wrapped(line: &str, n_columns: Option<usize>) -> String {
    let mut wrap = Wrap::new(n_columns);
    let mut out = wrap.push(line);
    out.push_str(&wrap.finish());
    out
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn a_line_is_broken_between_words_where_the_terminal_would_break_it_within() {
        let line = "memory: activations 3 MiB, workspace 2 MiB";
        assert_eq!(
            wrapped(line, Some(24)),
            "memory: activations 3\nMiB, workspace 2 MiB"
        );
        assert_eq!(wrapped(line, None), line);
    }
}

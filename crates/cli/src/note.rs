//! [`note!`]: lines for people on standard error.
//!
//! The standard macros panic if standard error is closed or full. Invariant: a note that cannot be written
//! does not end the work.

use std::{
    fmt,
    io::{self, Write as _},
};

use console::Term;

use crate::hanging::{columns, hanging};

/// Writes a line to standard error, formatted as by `println!`. A line that cannot be written is dropped.
macro_rules! note {
    ($($arg:tt)*) => {
        $crate::note::write(format_args!($($arg)*))
    };
}
pub(crate) use note;

/// Writes a line; called by [`note!`]. On a terminal it wraps between words.
pub(crate) fn write(line: fmt::Arguments<'_>) {
    let line = hanging(&line.to_string(), columns(&Term::stderr()));
    // One write, so that lines of several processes do not mix.
    let _unwritten = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

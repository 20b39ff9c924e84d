//! Standard output, with failures told apart: a reader that went away is no error, a full disk is.

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes text and hands it on at once.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::unwritable("standard output", &error))
}

/// Writes a line.
pub(crate) fn print_line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Writes a JSON value over several lines.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print_line(&format!("{value:#}"))
}

//! Text that commands read from a file or from standard input.
//!
//! Most commands read one. Invariant: text that is not UTF-8 is an error that names the place.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use tokenmill::text::without_mark;

use crate::{failure::Failure, swapped::refuse_model_as_text};

/// Reads a text file, without the byte order mark that some editors write.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    refuse_model_as_text(path)?;
    let bytes = fs::read(path).map_err(|error| Failure::unreadable(path, &error))?;
    let text = String::from_utf8(bytes).map(|mut text| {
        let n_mark = text.len() - without_mark(&text).len();
        text.drain(..n_mark);
        text
    });
    text.map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Failure::input(format!(
            "{} is not UTF-8 text: byte {offset} belongs to no character",
            path.display()
        ))
    })
}

/// Standard input, to its end.
pub(crate) fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|error| {
        Failure::input(format!("cannot read standard input: {error}")).hint("it must be UTF-8 text")
    })?;
    Ok(text)
}

//! [`Failure`]: why a command did not succeed, as a message for the user and an exit code.
//!
//! Errors of the library bring their kind and their hint, which [`of_library`] takes over. Invariant: a failure prints one line: the
//! problem first, then the hint.

mod gpu;
mod of_library;

use std::{io, path::Path, process::ExitCode};

use tokenmill::{Error, advice::ErrorKind};

use crate::{note::note, visible::visible};

/// Exit code after Ctrl-C, as a shell reports it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    pub(crate) message: String,
    /// Advice, a sentence.
    pub(crate) hint: Option<String>,
}

/// Returns the exit code of a kind of failure; `tokenmill --help` lists them.
fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::ReaderGone => 0,
        ErrorKind::Options => 2,
        ErrorKind::Input => 3,
        ErrorKind::Output => 4,
        ErrorKind::Device => 5,
        ErrorKind::DeviceLost => 6,
        ErrorKind::Stopped => INTERRUPTED,
        _ => 1,
    }
}

impl Failure {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            code: code_of(kind),
            message: without_numbers(&message.into()),
            hint: None,
        }
    }

    /// The work failed.
    pub(crate) fn work(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// An option or argument is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Options, message)
    }

    /// The input cannot be used.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Input, message)
    }

    /// A file cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::input(format!("cannot read {}: {error}", path.display()))
    }

    /// A file or standard output cannot be written.
    pub(crate) fn unwritable(target: impl AsRef<Path>, source: io::Error) -> Self {
        let path = target.as_ref().to_owned();
        Error::Write { path, source }.into()
    }

    /// An answer ended before it satisfied its constraint.
    pub(crate) fn cut_shape(message: impl Into<String>) -> Self {
        let code = 7;
        Self {
            code,
            ..Self::work(message)
        }
    }

    /// Ctrl-C was pressed.
    pub(crate) fn interrupted() -> Self {
        Self::new(ErrorKind::Stopped, "interrupted")
    }

    /// Adds a hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the line to print.
    pub(crate) fn line(&self) -> String {
        let hint = (self.hint.as_ref()).map(|hint| format!(" (hint: {})", visible(hint)));
        format!("error: {}{}", self.message_line(), hint.unwrap_or_default())
    }

    /// Returns the message in one line, without the hint.
    pub(crate) fn message_line(&self) -> String {
        // Some messages quote a file; a line break in it would split one error into two lines, and an escape
        // would reach the terminal.
        visible(&self.message.replace(['\n', '\r'], " ")).into()
    }

    /// Prints the failure and gives its exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if ![0, INTERRUPTED].contains(&self.code) {
            note!("{}", self.line());
        }
        ExitCode::from(self.code)
    }
}

/// Removes the numbers of system errors, which Rust adds to their texts.
fn without_numbers(text: &str) -> String {
    let mut pieces = text.split(" (os error ");
    let first = pieces.next().unwrap_or_default();
    let others = pieces.map(|piece| piece.split_once(')').map_or(piece, |(_, rest)| rest));
    [first].into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_without_escapes_and_numbers() {
        let error = io::Error::from_raw_os_error(2);
        let failure = Failure::unreadable(Path::new("\u{1b}[2J\nb"), &error).hint("name one: a\u{7}.gguf");
        let expected =
            r"error: cannot read \u{1b}[2J b: No such file or directory (hint: name one: a\u{7}.gguf)";
        assert_eq!(failure.line(), expected);
    }
}

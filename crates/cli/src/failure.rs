//! [`Failure`]: why a command did not succeed, as a message for the user and an exit code.
//!
//! Errors of the library carry their hints, and [`of_library`] takes both over. Invariant: a failure prints one line: the problem first,
//! then the hint.

mod gpu;
mod of_library;

use std::{fmt::Display, io, path::Path, process::ExitCode};

use tokenmill::advice::MAKE_ROOM;

use crate::{note::note, numbers::size_of, visible::visible};

/// Exit code after Ctrl-C, as a shell reports it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: FailureKind,
    message: String,
    hint: Option<String>,
    /// Whether a GPU was requested and none can be used.
    lacks_gpu: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    /// The work itself failed.
    Work,
    /// A wrong option.
    Usage,
    /// Input that cannot be used.
    Input,
    /// Output that cannot be written.
    Output,
    /// A requested GPU cannot be used.
    Device,
    /// A device that was lost while it worked.
    DeviceLost,
    /// An answer that ended before it satisfied its constraint.
    CutShape,
    /// The reader of the output went away, which is its right.
    ReaderGone,
    /// Ctrl-C.
    Interrupted,
}

impl Failure {
    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: without_numbers(message.into()),
            hint: None,
            lacks_gpu: false,
        }
    }

    /// The work failed.
    pub(crate) fn work(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Work, message)
    }

    /// An option or argument is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Usage, message)
    }

    /// The input cannot be used.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Input, message)
    }

    /// A file cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::input(format!("cannot read {}: {error}", path.display()))
    }

    /// Creates the failure of a write; `target` names the output.
    pub(crate) fn unwritable(target: impl Display, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(FailureKind::ReaderGone, "the reader went away");
        }
        let message = format!("cannot write to {target}: {error}");
        let failure = Self::new(FailureKind::Output, message);
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                failure.hint(MAKE_ROOM)
            }
            _ => failure,
        }
    }

    /// A folder cannot be made.
    pub(crate) fn no_folder(path: &Path, error: &io::Error) -> Self {
        Self::output(format!("cannot make the folder {}: {error}", path.display()))
    }

    /// There is no room for the output.
    pub(crate) fn output(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Output, message)
    }

    /// A disk has too little room for the output.
    pub(crate) fn no_room(folder: &Path, needed_bytes: u64, free_bytes: u64) -> Self {
        Self::output(format!(
            "{} has room for {}, and {} are needed, {} more",
            folder.display(),
            size_of(free_bytes),
            size_of(needed_bytes),
            size_of(needed_bytes.saturating_sub(free_bytes))
        ))
    }

    /// An answer was cut before its shape was complete.
    pub(crate) fn cut_shape(message: impl Into<String>) -> Self {
        Self::new(FailureKind::CutShape, message)
    }

    /// Ctrl-C was pressed.
    pub(crate) fn interrupted() -> Self {
        Self::new(FailureKind::Interrupted, "interrupted")
    }

    /// Adds a hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Gives the failure another message.
    pub(crate) fn reworded(self, message: String) -> Self {
        Self { message, ..self }
    }

    /// Gives the failure another message and no hint.
    pub(crate) fn retold(self, message: String) -> Self {
        let hint = None;
        Self {
            message,
            hint,
            ..self
        }
    }

    /// Returns the message without the hint.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the hint, if there is one.
    pub(crate) fn what_to_do(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Returns the line to print.
    pub(crate) fn line(&self) -> String {
        let message = self.message_line();
        match &self.hint {
            Some(hint) => format!("error: {message} (hint: {})", visible(hint)),
            None => format!("error: {message}"),
        }
    }

    /// Returns the message in one line, without the hint.
    pub(crate) fn message_line(&self) -> String {
        // Some messages quote a file; a line break in it would split one error into two lines, and an escape
        // would reach the terminal.
        let message = self.message.replace(['\n', '\r'], " ");
        visible(&message).into()
    }

    /// Prints the failure and gives its exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let code = match self.kind {
            FailureKind::ReaderGone => return ExitCode::SUCCESS,
            FailureKind::Interrupted => return ExitCode::from(INTERRUPTED),
            FailureKind::Work => 1,
            FailureKind::Usage => 2,
            FailureKind::Input => 3,
            FailureKind::Output => 4,
            FailureKind::Device => 5,
            FailureKind::DeviceLost => 6,
            FailureKind::CutShape => 7,
        };
        note!("{}", self.line());
        ExitCode::from(code)
    }
}

/// Removes the numbers of system errors, which Rust adds to their texts.
fn without_numbers(mut text: String) -> String {
    while let Some(begin) = text.find(" (os error ") {
        let Some(length) = text[begin..].find(')') else {
            break;
        };
        text.replace_range(begin..=begin + length, "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let failure = Failure::input("a\nb").hint("do c");
        assert_eq!(failure.line(), "error: a b (hint: do c)");
    }

    #[test]
    fn what_a_message_quotes_does_not_reach_the_terminal_as_an_escape() {
        let failure = Failure::input("tensor `\u{1b}[2J\u{9b}x` is missing").hint("name one: a\u{7}.gguf");
        assert_eq!(
            failure.line(),
            r"error: tensor `\u{1b}[2J\u{9b}x` is missing (hint: name one: a\u{7}.gguf)"
        );
    }

    #[test]
    fn the_system_reason_has_no_number() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(
            Failure::unreadable(Path::new("x"), &error).line(),
            "error: cannot read x: No such file or directory"
        );
    }
}

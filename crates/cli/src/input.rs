//! Text that commands read from a file or from standard input.
//!
//! Most commands read one. Invariant: text that is not UTF-8 is an error that names the place.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};
#[cfg(unix)]
use std::{
    fs::File,
    io::Seek as _,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::FileTypeExt as _,
    },
};

#[cfg(unix)]
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

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

/// Whether standard input is a file or a pipe with unread text. It never waits for a writer.
#[cfg(unix)]
pub(crate) fn has_unread_stdin() -> bool {
    has_unread(io::stdin().as_fd()).unwrap_or(false)
}

/// Elsewhere a pipe cannot be asked without reading it.
#[cfg(not(unix))]
pub(crate) fn has_unread_stdin() -> bool {
    false
}

#[cfg(unix)]
fn has_unread(input: BorrowedFd<'_>) -> io::Result<bool> {
    let mut file = File::from(input.try_clone_to_owned()?);
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(file.stream_position()? < metadata.len());
    }
    if !metadata.file_type().is_fifo() {
        return Ok(false);
    }
    let mut polled = [PollFd::new(input, PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO)?;
    let [polled] = polled;
    Ok(polled
        .revents()
        .is_some_and(|events| events.contains(PollFlags::POLLIN)))
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn text_is_seen_without_waiting_for_more() {
        let (reader, mut writer) = io::pipe().unwrap();
        assert!(!has_unread(reader.as_fd()).unwrap(), "nothing was written yet");
        writer.write_all(b"text").unwrap();
        assert!(has_unread(reader.as_fd()).unwrap());
        let (reader, writer) = io::pipe().unwrap();
        drop(writer);
        assert!(!has_unread(reader.as_fd()).unwrap(), "the writer wrote nothing");

        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"text").unwrap();
        assert!(!has_unread(file.as_fd()).unwrap(), "it was read to its end");
        file.rewind().unwrap();
        assert!(has_unread(file.as_fd()).unwrap());
        let null = File::open("/dev/null").unwrap();
        assert!(!has_unread(null.as_fd()).unwrap());
    }
}

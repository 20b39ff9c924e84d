//! Advice for files that cannot be read, converted or written.

use std::{
    io::{self, ErrorKind as Io},
    path::Path,
};

use tokenmill_convert::ConvertError;
use tokenmill_gguf::GgufError;

use super::{ErrorKind, Hint, MODEL_FORMS};

pub(super) const TOKENIZER: &str =
    "a Hugging Face folder has its tokenizer in tokenizer.json; a .gguf file holds its own";
/// The hint for a full disk.
pub const MAKE_ROOM: &str = "make room, or write to another disk";

/// Returns whether a file that was read for its tokenizer is not a GGUF file.
pub(super) fn is_tokenizer_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

pub(super) fn kind_of_write(error: &io::Error) -> ErrorKind {
    match error.kind() {
        Io::BrokenPipe => ErrorKind::ReaderGone,
        _ => ErrorKind::Output,
    }
}

pub(super) fn hint_of_write(error: &io::Error) -> Option<Hint> {
    is_full(error).then(|| Hint::new(MAKE_ROOM))
}

/// Returns whether a disk or a quota is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge
    )
}

/// Returns the path of a file that does not exist.
pub(super) fn missing_file(error: &GgufError) -> Option<&Path> {
    match error {
        GgufError::InFile { reason, .. } => missing_file(reason),
        GgufError::Io { path, reason } if reason.kind() == Io::NotFound => Some(path),
        _ => None,
    }
}

pub(super) fn hint_of_gguf(error: &GgufError) -> Option<Hint> {
    match error {
        _ if missing_file(error).is_some() => Some(Hint::new(MODEL_FORMS)),
        // The message about a known format has its own hint.
        GgufError::NotGguf { looks_like, .. } if !looks_like.contains(';') => Some(Hint::new(MODEL_FORMS)),
        GgufError::InFile { reason, .. } => hint_of_gguf(reason),
        GgufError::CountTooLarge { .. } => Some(Hint::new("it may be truncated; fetch it again")),
        _ => None,
    }
}

pub(super) fn kind(error: &ConvertError) -> ErrorKind {
    match error {
        ConvertError::Io { what: "read", .. } => ErrorKind::Input,
        ConvertError::Io { source, .. } => kind_of_write(source),
        ConvertError::NoRoom { .. } => ErrorKind::Output,
        ConvertError::Stopped => ErrorKind::Stopped,
        ConvertError::UnknownPreset { .. }
        | ConvertError::BadPattern { .. }
        | ConvertError::ImportanceUnused { .. }
        | ConvertError::SameFile { .. } => ErrorKind::Options,
        _ => ErrorKind::Input,
    }
}

pub(super) fn hint(error: &ConvertError) -> Option<Hint> {
    let hint = match error {
        ConvertError::Gguf(error) => return hint_of_gguf(error),
        ConvertError::Io { what: "read", .. } => return None,
        ConvertError::Io { source, .. } => return hint_of_write(source),
        ConvertError::NoRoom { .. } => MAKE_ROOM,
        ConvertError::Requantized { .. } => "{allow-requantize} quantizes it all the same",
        ConvertError::ImportanceLacks { .. }
        | ConvertError::ImportanceKinds { .. }
        | ConvertError::ImportanceLayers { .. } => {
            "measure one with `tokenmill imatrix MODEL TEXT OUT.gguf`; {allow-partial} takes this one"
        }
        ConvertError::NeedsImportance { .. } => "`tokenmill imatrix` makes one for {importance}",
        _ => return None,
    };
    Some(Hint::new(hint))
}

//! Files that cannot be read, converted or rendered.
//!
//! Separate from the failures of whole models: a tensor or a template is wrong whatever is done with it.

use std::io;

use tokenmill_convert::ConvertError;
use tokenmill_gguf::GgufError;
use tokenmill_text::template::TemplateError;

use super::{Failure, MAKE_ROOM};
use crate::missing_model::{self, WHAT_MODEL_IS};

impl From<GgufError> for Failure {
    fn from(error: GgufError) -> Self {
        let hint = gguf_hint(&error);
        let message = match &error {
            GgufError::Io { path, reason } => {
                format!("cannot open {}: {}", path.display(), super::reason(reason))
            }
            _ => error.to_string(),
        };
        let failure = Self::input(message);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn gguf_hint(error: &GgufError) -> Option<String> {
    match error {
        GgufError::Io { path, reason } if reason.kind() == io::ErrorKind::NotFound => {
            Some(missing_model::hint(path))
        }
        // For formats that are known the message itself says what to do.
        GgufError::NotGguf { looks_like, .. } if !looks_like.contains(';') => Some(WHAT_MODEL_IS.to_owned()),
        GgufError::InFile { reason, .. } => gguf_hint(reason),
        _ => None,
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Self {
        let message = error.to_string();
        match error {
            ConvertError::Gguf(error) => error.into(),
            ConvertError::Io {
                what: "read",
                path,
                source,
            } => Self::unreadable(&path, &source),
            ConvertError::Io { path, source, .. } => Self::unwritable(path.display(), &source),
            ConvertError::NoRoom {
                folder,
                needed_bytes,
                free_bytes,
            } => Self::no_room(&folder, needed_bytes, free_bytes).hint(MAKE_ROOM),
            ConvertError::Stopped => Self::interrupted(),
            ConvertError::UnknownPreset { .. }
            | ConvertError::BadPattern { .. }
            | ConvertError::ImportanceUnused { .. }
            | ConvertError::SameFile { .. } => Self::usage(message),
            ConvertError::Requantized { .. } => Self::input(message).hint("--allow-requantize allows it"),
            ConvertError::ImportanceLacks { .. }
            | ConvertError::ImportanceKinds { .. }
            | ConvertError::ImportanceLayers { .. } => Self::input(message)
                .hint("measure one with `tokenmill imatrix MODEL TEXT OUT.gguf`; --allow-partial-imatrix takes this one"),
            ConvertError::NeedsImportance { .. } => Self::input(message).hint("--imatrix FILE gives one"),
            _ => Self::input(message),
        }
    }
}

impl From<TemplateError> for Failure {
    fn from(error: TemplateError) -> Self {
        Self::input(error.to_string())
    }
}

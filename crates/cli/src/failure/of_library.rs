//! Errors of the library as failures: their text, the exit code of their kind, and their hint with the names of this program's flags.
//!
//! Only facts of the command line are added: forms of a MODEL that does not exist, hidden GPUs, and sizes with units.

use std::{env, io};

use tokenmill::{
    Error,
    advice::{ErrorKind, hint_for},
    hub::{HubError, SourceName},
};
use tokenmill_backend::{RowError, StepError};
use tokenmill_convert::ConvertError;
use tokenmill_gguf::GgufError;
use tokenmill_model::LoadError;
use tokenmill_sched::EngineError;
use tokenmill_text::template::TemplateError;

use super::{Failure, FailureKind};
use crate::{missing_model, numbers::size_of};

impl From<ErrorKind> for FailureKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Options => Self::Usage,
            ErrorKind::Input => Self::Input,
            ErrorKind::Output => Self::Output,
            ErrorKind::ReaderGone => Self::ReaderGone,
            ErrorKind::Device => Self::Device,
            ErrorKind::DeviceLost => Self::DeviceLost,
            ErrorKind::Stopped => Self::Interrupted,
            _ => Self::Work,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = Self::new(error.kind().into(), message(&error));
        let hint = match missing_path(&error) {
            Some(path) => Some(missing_model::hint(path)),
            None => error.hint().map(|hint| hint.for_program()),
        };
        let failure = hint.into_iter().fold(failure, Self::hint);
        failure.of_gpu(&error, env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
    }
}

/// Returns the text of an error, with sizes in units that people read.
fn message(error: &Error) -> String {
    match error {
        Error::LoadOutOfMemory { source, .. } => format!("{error}: {source}"),
        Error::Hub(HubError::NothingFits {
            name,
            smallest,
            n_bytes,
            memory_bytes,
        }) => format!(
            "no file of `{name}` fits into {} of memory; the smallest, {smallest}, has {}",
            size_of(*memory_bytes),
            size_of(*n_bytes)
        ),
        Error::Hub(HubError::NoSpace {
            folder,
            needed_bytes,
            free_bytes,
        })
        | Error::Convert(ConvertError::NoRoom {
            folder,
            needed_bytes,
            free_bytes,
        }) => Failure::no_room(folder, *needed_bytes, *free_bytes).message,
        _ => without_architectures(error.to_string()),
    }
}

/// Says of an image encoder that it is one, in place of the architectures that models have.
fn without_architectures(mut text: String) -> String {
    if let Some(at) = text.find("architecture `clip` is not supported") {
        text.truncate(at);
        text.push_str("this file is an image encoder, not a model");
    }
    text
}

/// Returns the path of a file that does not exist.
fn missing_path(error: &Error) -> Option<&std::path::Path> {
    let (Error::Gguf(error)
    | Error::Load(LoadError::Gguf(error))
    | Error::Convert(ConvertError::Gguf(error))) = error
    else {
        return None;
    };
    let mut error = error;
    while let GgufError::InFile { reason, .. } = error {
        error = reason;
    }
    match error {
        GgufError::Io { path, reason } if reason.kind() == io::ErrorKind::NotFound => Some(path),
        _ => None,
    }
}

/// Converts the errors of a library through the error of the front door.
macro_rules! through_error {
    ($($error:ty: $wrap:expr),* $(,)?) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let wrap = $wrap;
                Self::from(wrap(error))
            }
        })*
    };
}

through_error! {
    ConvertError: Error::Convert,
    EngineError: Error::Engine,
    GgufError: Error::Gguf,
    HubError: Error::Hub,
    LoadError: Error::Load,
    RowError: |error| Error::Engine(EngineError::Row(error)),
    StepError: |error| Error::Engine(EngineError::Step(error)),
    TemplateError: Error::Template,
}

impl Failure {
    /// Creates the failure of a model with this name; its hint uses the words of its source.
    pub(crate) fn of_name(name: &SourceName, error: HubError) -> Self {
        let hint = hint_for(name, &error).map(|hint| hint.for_program());
        hint.into_iter().fold(Self::from(error), Self::hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_is_told_without_the_architectures_of_models() {
        let error = |found: &str| {
            let found = found.to_owned();
            let supported = vec!["llama", "qwen3"];
            Failure::from(LoadError::UnknownArchitecture { found, supported }).line()
        };
        assert_eq!(
            error("clip"),
            "error: this file is an image encoder, not a model (hint: give it with `--mmproj FILE` and the file of its model)"
        );
        assert!(error("x").contains("supported are llama, qwen3"));
    }
}

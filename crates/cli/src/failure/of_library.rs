//! Errors of the library as failures: their text, their kind, and their hint with the names of this program's flags.
//!
//! Only facts of the command line are added: forms of a MODEL that does not exist, hidden GPUs, and sizes with units.

use std::env;

use tokenmill::{
    Error,
    advice::hint_for,
    hub::{HubError, SourceName},
};
use tokenmill_convert::ConvertError;
use tokenmill_gguf::GgufError;
use tokenmill_model::LoadError;
use tokenmill_sched::EngineError;
use tokenmill_text::template::TemplateError;

use super::{Failure, gpu};
use crate::{missing_model, numbers::size_of};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let typed: Vec<_> = env::args_os().collect();
        let visible = env::var("CUDA_VISIBLE_DEVICES").ok();
        let of_line = (error.missing_file().map(missing_model::hint))
            .or_else(|| gpu::hint(&error, &typed, visible.as_deref()));
        let hint = of_line.or_else(|| Some(error.hint()?.for_program()));
        let failure = Self::new(error.kind(), message(&error));
        Self { hint, ..failure }
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
        }) => format!(
            "{} has room for {}, and {} are needed, {} more",
            folder.display(),
            size_of(*free_bytes),
            size_of(*needed_bytes),
            size_of(needed_bytes.saturating_sub(*free_bytes))
        ),
        _ => {
            let text = error.to_string();
            // The architectures that models have are nothing to an image encoder.
            match text.split_once("architecture `clip` is not supported") {
                Some((file, _)) => format!("{file}this file is an image encoder, not a model"),
                None => text,
            }
        }
    }
}

/// Converts the errors of a layer through the error of the library.
macro_rules! through_error {
    ($($layer:ty),* $(,)?) => {
        $(impl From<$layer> for Failure {
            fn from(error: $layer) -> Self {
                Error::from(error).into()
            }
        })*
    };
}

through_error!(
    ConvertError,
    EngineError,
    GgufError,
    HubError,
    LoadError,
    TemplateError
);

impl Failure {
    /// Creates the failure of a model with this name; its hint uses the words of its source.
    pub(crate) fn of_name(name: &SourceName, error: HubError) -> Self {
        let hint = hint_for(name, &error).map(|hint| hint.for_program());
        hint.into_iter().fold(error.into(), Self::hint)
    }
}

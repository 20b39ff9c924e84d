//! The library's errors as exceptions.
//!
//! Two kinds, because programs treat them apart: a model that cannot be used, and a request that cannot be answered.
//! Invariant: the message is the library's own.

use pyo3::{PyErr, create_exception, exceptions::PyException};

create_exception!(
    tokenmill,
    Error,
    PyException,
    "Why a model could not be loaded or used."
);
create_exception!(
    tokenmill,
    LoadError,
    Error,
    "The model cannot be opened or loaded."
);
create_exception!(
    tokenmill,
    RequestError,
    Error,
    "The request was refused, or failed."
);

/// The exception of a model that cannot be loaded.
pub(crate) fn load(error: impl std::error::Error) -> PyErr {
    LoadError::new_err(whole(&error))
}

/// The exception of a request that cannot be answered.
pub(crate) fn request(error: impl std::error::Error) -> PyErr {
    RequestError::new_err(whole(&error))
}

/// The message of an error and of all its causes that it does not tell itself.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

//! [`Error`]: why a model could not be used.
//!
//! One enum for the whole front door. Invariant: a refusal names what is wrong; what the layers below say is kept as it is.

use tokenmill_backend::BackendError;
use tokenmill_model::LoadError;

/// Why a model could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model could not be opened or loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The GPU that was asked for cannot be used, or not for this model.
    #[error("the GPU cannot be used: {0}")]
    Gpu(#[source] BackendError),
}

//! Requests that an engine refuses or fails.
//!
//! Separate from the loads, which come before.

use tokenmill_backend::{RowError, StepError};
use tokenmill_sched::EngineError;

use super::Failure;

impl Failure {
    /// A file was changed that the model reads while it computes.
    pub(crate) fn weights_changed(message: impl Into<String>) -> Self {
        Self::input(message).hint(
            "start the program again; a file in use stays what it is where another one is renamed to its name, and nothing is written into it",
        )
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        match error {
            StepError::DeviceLost { .. } => Self::device_lost(error.to_string()),
            StepError::WeightsChanged { .. } => Self::weights_changed(error.to_string()),
            _ => Self::work(error.to_string()),
        }
    }
}

impl From<RowError> for Failure {
    fn from(error: RowError) -> Self {
        Self::work(error.to_string()).hint("the file's weights may be damaged; fetch the file again")
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Row(error) => error.into(),
            EngineError::Step(error) => error.into(),
            EngineError::Sampling(_) | EngineError::SampleCount { .. } => Self::usage(error.to_string()),
            EngineError::EmptyPrompt
            | EngineError::EmptyBatch
            | EngineError::UnknownToken { .. }
            | EngineError::PredictsNoTokens
            | EngineError::Adapter(_)
            | EngineError::TakesNoMedia
            | EngineError::MediaTooLong { .. }
            | EngineError::RowsOutOfRange { .. } => Self::input(error.to_string()),
            EngineError::ContextLimitExceeded { .. } | EngineError::PoolTooSmall { .. } => {
                Self::input(error.to_string()).hint("shorten the prompt, or give more context with -c")
            }
            _ => Self::work(error.to_string()),
        }
    }
}

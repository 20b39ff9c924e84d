//! Turns the refusals and failures of the engine into an [`ApiError`].
//!
//! The errors themselves know no engine.

use tokenmill_backend::RowError;
use tokenmill_sched::EngineError;

use crate::ApiError;

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::EmptyPrompt | EngineError::EmptyBatch => {
                Self::invalid("prompt", "is empty; give at least one token")
            }
            EngineError::ContextLimitExceeded { provided, maximum } => {
                Self::ContextLengthExceeded { provided, maximum }
            }
            EngineError::UnknownToken { .. } => Self::invalid("prompt", error.to_string()),
            EngineError::TakesNoMedia | EngineError::MediaTooLong { .. } => {
                Self::invalid("messages", error.to_string())
            }
            EngineError::NothingAllowed => Self::invalid("logit_bias", error.to_string()),
            // It was there when the request arrived.
            EngineError::UnknownAdapter { .. } => Self::UnknownModel {
                model: error.to_string(),
                near: String::new(),
                available: "what `/v1/models` lists".to_owned(),
            },
            EngineError::Adapter(_) => Self::invalid("lora_path", error.to_string()),
            EngineError::PredictsNoTokens => Self::invalid("model", error.to_string()),
            EngineError::PoolTooSmall { .. } => Self::invalid("max_tokens", error.to_string()),
            EngineError::SampleCount { .. } => Self::invalid("n", error.to_string()),
            EngineError::Sampling(_) => Self::invalid("sampling", error.to_string()),
            EngineError::QueueFull { queued, .. } => Self::QueueFull {
                waiting: queued,
                retry_after_s: 1,
            },
            // A queue that is full of long prompts takes longer to empty.
            EngineError::QueueTokensFull { .. } => Self::QueueTokensFull {
                reason: error.to_string(),
                retry_after_s: 5,
            },
            EngineError::Draining => Self::NotReady {
                reason: "it is shutting down",
            },
            EngineError::Stopped => Self::NotReady {
                reason: "the engine has stopped",
            },
            // Biases that forbid every token of the vocabulary were refused before. The remaining causes are a shape, or the tokens
            // that end an answer, which are forbidden until `min_tokens`.
            EngineError::Row(RowError::NothingAllowed) => Self::ShapeFailed {
                reason: "`logit_bias` or `min_tokens` forbids every token that it allows next".to_owned(),
            },
            EngineError::Constraint(failure) => Self::ShapeFailed {
                reason: failure.to_string(),
            },
            EngineError::QueueTimeout { .. } | EngineError::DeadlineExceeded { .. } => Self::DeadlineExceeded,
            _ => Self::Internal {
                reason: error.to_string(),
            },
        }
    }
}

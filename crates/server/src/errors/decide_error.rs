//! Turns the refusals of a decision into an [`ApiError`], with the field at fault.
//!
//! Apart from the engine's errors, because only requests for decisions know where a question stands in them.

use tokenmill::decide::DecideError;

use crate::ApiError;

impl From<DecideError> for ApiError {
    fn from(error: DecideError) -> Self {
        Self::of_decision(error, |_| "questions".to_owned())
    }
}

impl ApiError {
    /// Makes the refusal of a decision. `place` returns the path of a question by its index.
    pub(crate) fn of_decision(error: DecideError, place: impl Fn(usize) -> String) -> Self {
        let reason = error.to_string();
        match error {
            DecideError::NoNumbers { .. } => Self::Internal { reason },
            DecideError::OpenReasoning
            | DecideError::AnswerHead
            | DecideError::UnknownFamily { .. }
            | DecideError::FamilyKey { .. }
            | DecideError::FamilyToken { .. }
            | DecideError::FamilyTemplate { .. }
            | DecideError::TemperatureFile { .. } => Self::invalid("model", reason),
            DecideError::Json { path, reason } => Self::invalid(path, reason),
            DecideError::UnknownField { path } => Self::unknown_field(path, "", [].into_iter()),
            DecideError::ImageCount { .. } => Self::invalid("images", reason),
            DecideError::Permutations { .. } => Self::invalid("permutations", reason),
            DecideError::Temperature { .. } => Self::invalid("temperature", reason),
            error => {
                let place = error.question_idx().map(place);
                Self::invalid(place.unwrap_or_else(|| "questions".to_owned()), reason)
            }
        }
    }
}

//! Turns the refusals of a decision into an [`ApiError`], with the field at fault.
//!
//! Apart from the engine's errors, because only requests for decisions know where a question stands in them.

use tokenmill::decide::DecideError;

use crate::ApiError;

/// The fields in which a request has the parts of a decision.
#[derive(Clone, Copy)]
pub(crate) struct DecisionFields<'a> {
    pub(crate) state: &'a str,
    /// Where the state's images are.
    pub(crate) images: &'a str,
    /// Returns the path of a question by its index.
    pub(crate) question: &'a (dyn Fn(usize) -> String + Sync),
}

impl From<DecideError> for ApiError {
    fn from(error: DecideError) -> Self {
        let fields = DecisionFields {
            state: "state",
            images: "images",
            question: &|_| "questions".to_owned(),
        };
        Self::of_decision(error, fields)
    }
}

impl ApiError {
    /// Makes the refusal of a decision.
    pub(crate) fn of_decision(error: DecideError, fields: DecisionFields<'_>) -> Self {
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
            DecideError::UnknownField { path, name, known } => {
                Self::unknown_field(path, &name, known.iter().map(String::as_str))
            }
            DecideError::ImageCount { .. } => Self::invalid(fields.images, reason),
            DecideError::StateTooLong { .. }
            | DecideError::IndentedTooLong {
                question_idx: None, ..
            } => Self::invalid(fields.state, reason),
            DecideError::Permutations { .. } => Self::invalid("permutations", reason),
            DecideError::Temperature { .. } => Self::invalid("temperature", reason),
            error => {
                let question = error.question_idx().map(fields.question);
                Self::invalid(question.unwrap_or_else(|| "questions".to_owned()), reason)
            }
        }
    }
}

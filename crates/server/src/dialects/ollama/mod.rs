//! Ollama's API: request types of each endpoint.
//!
//! Types and their checks only, as in [`openai`](crate::dialects::openai); the handlers generate. Each endpoint has a table of fields
//! from which the documentation is printed.

pub mod chat;
pub mod embed;
pub mod generate;
pub mod options;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    ApiError,
    requests::{
        effort::{set_effort, set_thinking},
        fields::{Field, yes},
    },
};

/// The field that says how long the model stays loaded after a request.
pub(crate) const KEEP_ALIVE: Field = yes(
    "keep_alive",
    "seconds, or a time such as `5m`; a negative one keeps the model loaded. Where the server has one model, which stays loaded, `0` is refused",
);

/// `think`: whether the model thinks before it answers, or how much.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected true, false, or one of low, medium, high and max"
)]
pub enum Think {
    /// On or off.
    Switch(bool),
    /// How much.
    Effort(String),
}

impl Think {
    /// Puts it into the variables that templates have for it.
    ///
    /// # Errors
    /// An effort of another name.
    pub(crate) fn set(&self, variables: &mut Map<String, Value>) -> Result<(), ApiError> {
        match self {
            Self::Switch(thinks) => set_thinking(variables, *thinks),
            Self::Effort(effort) if matches!(effort.as_str(), "low" | "medium" | "high" | "max") => {
                set_effort(variables, "think", effort)?;
            }
            Self::Effort(_) => {
                return Err(ApiError::invalid(
                    "think",
                    "expected true, false, or one of low, medium, high and max",
                ));
            }
        }
        Ok(())
    }
}

//! Ollama's API: request types of each endpoint.
//!
//! Types and their checks only, as in [`openai`](crate::openai); the handlers generate. Each endpoint has a table of fields
//! from which the documentation is printed.

pub mod chat;
pub mod embed;
pub mod generate;
pub mod options;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    ApiError, Chosen, ServedModel,
    fields::{Field, all_but},
    tools::{set_effort, set_thinking},
};

/// The field that says how long the model stays loaded after a request.
pub(crate) const KEEP_ALIVE: Field = all_but(
    "keep_alive",
    &["0", "0.0", "\"0\"", "\"0s\"", "\"0m\"", "\"0h\""],
    "the model stays loaded as long as the server runs",
);

/// Finds what a request names as its model: as it is, and with and without the tag that Ollama puts behind names that have none.
///
/// # Errors
/// As [`ServedModel::choose`].
pub(crate) fn choose(model: &ServedModel, asked: Option<&str>) -> Result<Chosen, ApiError> {
    let other = asked.map(|name| {
        let untagged = name.strip_suffix(":latest").map(str::to_owned);
        untagged.unwrap_or_else(|| format!("{name}:latest"))
    });
    (model.choose(asked)).or_else(|error| model.choose(other.as_deref()).map_err(|_| error))
}

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
                set_effort(variables, effort);
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

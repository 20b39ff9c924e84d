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
    ApiError,
    fields::{Field, all_but},
    openai::chat::MAX_TOP_LOGPROBS,
    tools::{set_effort, set_thinking},
};

/// The field that says how long the model stays loaded after a request.
pub(crate) const KEEP_ALIVE: Field = all_but(
    "keep_alive",
    &["0", "0.0", "\"0\"", "\"0s\"", "\"0m\"", "\"0h\""],
    "the model stays loaded as long as the server runs",
);

/// The name of a model without the tag that Ollama's clients put behind names that have none.
pub(crate) fn without_tag(name: Option<&str>) -> Option<&str> {
    name.map(|name| name.strip_suffix(":latest").unwrap_or(name))
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

/// How many alternatives to report per token; `None` without `logprobs`.
///
/// # Errors
/// Too many, or asked for without `logprobs`.
fn n_logprobs(logprobs: Option<bool>, top_logprobs: Option<u32>) -> Result<Option<u32>, ApiError> {
    match (logprobs.unwrap_or(false), top_logprobs) {
        (_, Some(n)) if n > MAX_TOP_LOGPROBS => Err(ApiError::invalid(
            "top_logprobs",
            format!("{n} is more than {MAX_TOP_LOGPROBS}"),
        )),
        (false, Some(n)) if n > 0 => Err(ApiError::invalid("top_logprobs", "needs `logprobs: true`")),
        (false, _) => Ok(None),
        (true, n) => Ok(Some(n.unwrap_or(0))),
    }
}

//! How much a model should reason and write, as variables of chat templates.
//!
//! Each endpoint has another field for it. Invariant: a word that no template knows is refused by its field;
//! variables that the request itself sets stay.

use serde_json::{Map, Value};

use crate::{ApiError, errors::api_error::shortened};

/// Words that a request may use for its reasoning effort.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Puts a request's wish about reasoning in `field` into the variables that templates have for it.
///
/// # Errors
/// An unknown word.
pub(crate) fn set_effort(kwargs: &mut Map<String, Value>, field: &str, effort: &str) -> Result<(), ApiError> {
    check_word(field, effort, &EFFORTS)?;
    let thinks = effort != "none";
    kwargs.entry("reasoning_effort").or_insert_with(|| match effort {
        "none" | "minimal" => "low".into(),
        "xhigh" | "max" => "high".into(),
        other => other.into(),
    });
    set_thinking(kwargs, thinks);
    Ok(())
}

/// Puts how much a model is to write into the variable that templates have for it.
///
/// # Errors
/// An unknown word.
pub(crate) fn set_verbosity(
    kwargs: &mut Map<String, Value>,
    field: &str,
    verbosity: &str,
) -> Result<(), ApiError> {
    check_word(field, verbosity, &["low", "medium", "high"])?;
    kwargs.entry("verbosity").or_insert(verbosity.into());
    Ok(())
}

fn check_word(field: &str, word: &str, known: &[&str]) -> Result<(), ApiError> {
    if known.contains(&word) {
        return Ok(());
    }
    let reason = format!("`{}` is none of {}", shortened(word), known.join(", "));
    Err(ApiError::invalid(field, reason))
}

/// Switches thinking on or off, in the words of the templates that can.
pub(crate) fn set_thinking(kwargs: &mut Map<String, Value>, thinks: bool) {
    for name in ["enable_thinking", "thinking"] {
        kwargs.entry(name).or_insert(thinks.into());
    }
}

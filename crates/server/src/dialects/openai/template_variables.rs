//! The variables that a request may give to the chat template.
//!
//! Several endpoints take them. Invariant: no request sets a variable that the server itself sets.

use serde_json::{Map, Value};

use crate::ApiError;

/// Variables of a chat template that the request has other fields for, whose checks these would pass by.
const RESERVED: [&str; 5] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
];

/// Checks the variables that a request gives to the chat template.
///
/// # Errors
/// A variable that is not the request's to give.
pub(crate) fn check_kwargs(kwargs: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    match RESERVED.iter().find(|name| kwargs.contains_key(**name)) {
        Some(name) => Err(ApiError::invalid(
            format!("chat_template_kwargs.{name}"),
            "this variable is the server's; use the request's own fields",
        )),
        None => Ok(kwargs),
    }
}

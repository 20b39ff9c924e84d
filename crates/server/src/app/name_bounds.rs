//! Bounds the length of the names and ids in a conversation.
//!
//! Every API has these fields under other names. Invariant: the limits are beyond what programs generate.
//! OpenAI's API limits names of authors and tools to 64 characters; ids with a provider's signature have a
//! few thousand.

use serde_json::Value;

use crate::{ApiError, dialects::openai::chat::TemplateMessage};

/// Longest name of an author or a tool, in bytes.
const MAX_NAME_BYTES: usize = 512;

/// Longest id of a call, in bytes. Gateways put signatures of a model's reasoning into it.
const MAX_ID_BYTES: usize = 16 << 10;

/// Refuses names and ids that are too long.
///
/// # Errors
/// Names the first such field.
pub(crate) fn check_names(messages: &[TemplateMessage]) -> Result<(), ApiError> {
    for message in messages {
        check("name", message.name.as_deref(), MAX_NAME_BYTES)?;
        check("tool_call_id", message.tool_call_id.as_deref(), MAX_ID_BYTES)?;
        for call in message.tool_calls.iter().filter_map(Value::as_array).flatten() {
            check("tool_calls.id", call["id"].as_str(), MAX_ID_BYTES)?;
            check(
                "tool_calls.function.name",
                call["function"]["name"].as_str(),
                MAX_NAME_BYTES,
            )?;
        }
    }
    Ok(())
}

fn check(field: &str, text: Option<&str>, maximum: usize) -> Result<(), ApiError> {
    match text {
        Some(text) if text.len() > maximum => Err(ApiError::invalid(
            field,
            format!("it has {} bytes, at most {maximum}", text.len()),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_ids_are_bounded_wherever_they_stand() {
        let refused = |message: TemplateMessage| {
            let error = check_names(&[TemplateMessage::default(), message]).err()?;
            error.param().map(str::to_owned)
        };
        let text = |n_bytes: usize| "x".repeat(n_bytes);
        let named = |n_bytes| TemplateMessage {
            name: Some(text(n_bytes)),
            ..TemplateMessage::default()
        };
        assert_eq!(refused(named(MAX_NAME_BYTES)), None);
        assert_eq!(refused(named(MAX_NAME_BYTES + 1)).as_deref(), Some("name"));
        let of_call = |n_bytes| TemplateMessage {
            tool_call_id: Some(text(n_bytes)),
            ..TemplateMessage::default()
        };
        assert_eq!(refused(of_call(MAX_ID_BYTES)), None);
        assert_eq!(refused(of_call(7 << 20)).as_deref(), Some("tool_call_id"));
        let calling = |id: usize, name: usize| TemplateMessage {
            tool_calls: Some(json!([{ "id": text(id), "function": { "name": text(name) } }])),
            ..TemplateMessage::default()
        };
        assert_eq!(refused(calling(MAX_ID_BYTES, MAX_NAME_BYTES)), None);
        assert_eq!(
            refused(calling(MAX_ID_BYTES + 1, 1)).as_deref(),
            Some("tool_calls.id")
        );
        assert_eq!(
            refused(calling(1, MAX_NAME_BYTES + 1)).as_deref(),
            Some("tool_calls.function.name")
        );
    }
}

//! Converts the tool calls of earlier answers that requests send back.
//!
//! A model wrote these calls, on this or another server. Invariant: a model's output never makes a
//! conversation fail; a client's malformed call is refused with its path.

use serde_json::{Value, json};

use crate::ApiError;

/// Name of a custom tool's argument, which takes any text.
pub(crate) const CUSTOM_INPUT: &str = "input";

/// Most calls in one message. The search for a result's call takes time in proportion to it.
const MAX_CALLS: usize = 1024;

/// Checks the calls of an earlier answer and converts them for chat templates.
///
/// # Errors
/// Fails on too many calls, a call without a name, or one that is neither of a function nor of a custom tool, and names the path.
pub(crate) fn earlier_calls(path: &str, calls: Vec<Value>) -> Result<Value, ApiError> {
    if calls.len() > MAX_CALLS {
        let reason = format!("{} calls, at most {MAX_CALLS} in a message", calls.len());
        return Err(ApiError::invalid(path, reason));
    }
    let call = |(index, call): (usize, Value)| {
        let path = format!("{path}[{index}]");
        let id = call["id"].as_str();
        match &call["type"] {
            Value::Null => {}
            Value::String(kind) if kind == "function" => {}
            Value::String(kind) if kind == "custom" => {
                let custom = &call["custom"];
                let arguments = json!({ CUSTOM_INPUT: custom["input"] });
                let path = format!("{path}.custom");
                return earlier_call(&path, id, custom["name"].as_str(), &arguments);
            }
            _ => {
                return Err(ApiError::UnsupportedField {
                    param: format!("{path}.type"),
                    reason: "a call must be of a function or of a custom tool",
                });
            }
        }
        let function = &call["function"];
        let path = format!("{path}.function");
        earlier_call(&path, id, function["name"].as_str(), &function["arguments"])
    };
    calls.into_iter().enumerate().map(call).collect()
}

/// Checks and converts one call. Arguments are an object, or an object written as text. Others are passed on unchanged, because a model
/// wrote them or was cut off within them.
///
/// # Errors
/// Fails on a call without a name, and names the path.
pub(crate) fn earlier_call(
    path: &str,
    id: Option<&str>,
    name: Option<&str>,
    arguments: &Value,
) -> Result<Value, ApiError> {
    let name = name
        .filter(|name| !name.is_empty())
        .ok_or_else(|| ApiError::invalid(format!("{path}.name"), "a call needs the name of its tool"))?;
    let arguments = match arguments {
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Null) => json!({}),
            Ok(object @ Value::Object(_)) => object,
            _ => arguments.clone(),
        },
        Value::Null => json!({}),
        object @ Value::Object(_) => object.clone(),
        other => other.to_string().into(),
    };
    Ok(json!({
        "id": id.unwrap_or_default(),
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_calls_have_a_name_and_their_own_arguments() {
        let check = |function: Value| {
            earlier_calls(
                "m",
                vec![json!({"id": "c", "type": "function", "function": function})],
            )
            .map_err(|error| error.param().map(str::to_owned))
        };
        assert_eq!(
            check(json!({"arguments": "{}"})),
            Err(Some("m[0].function.name".to_owned()))
        );
        // Arguments that are not an object are passed on as text.
        for (arguments, text) in [
            (json!("[1]"), "[1]"),
            (json!("{"), "{"),
            (json!([]), "[]"),
            (json!(3), "3"),
        ] {
            let calls = check(json!({"name": "f", "arguments": arguments})).unwrap();
            assert_eq!(calls[0]["function"]["arguments"], text);
        }
        let calls = |n: usize| {
            let call = json!({"function": {"name": "f"}});
            earlier_calls("m", vec![call; n]).map_err(|error| error.param().map(str::to_owned))
        };
        assert!(calls(MAX_CALLS).is_ok());
        assert_eq!(calls(MAX_CALLS + 1), Err(Some("m".to_owned())));
        let call = check(json!({"name": "f", "arguments": "{\"a\": 1}"})).unwrap();
        assert_eq!(call[0]["function"]["arguments"], json!({"a": 1}));
    }
}

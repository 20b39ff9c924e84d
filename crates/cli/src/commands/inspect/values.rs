//! Values of a file, for people and for programs.
//!
//! Invariant: a value for people stands on one line and is short.

use serde_json::{Value as Json, json};
use tokenmill_gguf::{Array, Value};

/// Elements of an array that are shown.
const MAX_SHOWN_ELEMENTS: usize = 5;
/// Characters of a text that are shown.
const MAX_SHOWN_CHARS: usize = 80;

/// A count with a decimal unit.
pub(super) fn count(n: usize) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1} K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// A value on one line.
pub(super) fn shown(json: &Json) -> String {
    match json {
        Json::String(text) => {
            let cut: String = text.chars().take(MAX_SHOWN_CHARS).collect();
            let rest = if cut.len() < text.len() { " …" } else { "" };
            format!("{cut:?}{rest}")
        }
        Json::Array(items) => {
            let cut: Vec<String> = items
                .iter()
                .take(MAX_SHOWN_ELEMENTS)
                .map(Json::to_string)
                .collect();
            let rest = if items.len() > MAX_SHOWN_ELEMENTS {
                ", …"
            } else {
                ""
            };
            format!("[{}{rest}]", cut.join(", "))
        }
        _ => json.to_string(),
    }
}

/// A value of a GGUF file, for programs.
pub(super) fn value_json(value: &Value) -> Json {
    match value {
        Value::U8(value) => json!(value),
        Value::I8(value) => json!(value),
        Value::U16(value) => json!(value),
        Value::I16(value) => json!(value),
        Value::U32(value) => json!(value),
        Value::I32(value) => json!(value),
        Value::U64(value) => json!(value),
        Value::I64(value) => json!(value),
        // The shortest digits that mean this number, not those of its double.
        Value::F32(value) => value
            .to_string()
            .parse()
            .map_or(Json::Null, |value: f64| json!(value)),
        Value::F64(value) => json!(value),
        Value::Bool(value) => json!(value),
        Value::String(value) => json!(value),
        Value::Array(array) => match array {
            Array::U8(items) => json!(items),
            Array::I8(items) => json!(items),
            Array::U16(items) => json!(items),
            Array::I16(items) => json!(items),
            Array::U32(items) => json!(items),
            Array::I32(items) => json!(items),
            Array::U64(items) => json!(items),
            Array::I64(items) => json!(items),
            Array::F32(items) => items.iter().map(|item| value_json(&Value::F32(*item))).collect(),
            Array::F64(items) => json!(items),
            Array::Bool(items) => json!(items),
            Array::String(items) => items.iter().map(Json::from).collect(),
            _ => Json::Null,
        },
        _ => Json::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_units() {
        assert_eq!(count(3_500_000), "3.5 M");
    }
}

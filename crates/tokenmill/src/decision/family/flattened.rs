//! [`flatten_texts`]: objects and lists as labelled lines, the form in which Kev reads them.
//!
//! Invariant: no text of the result has a spelling of the form `<|word|>`.

use serde_json::{Map, Value};

/// Replaces the values of a prompt's variables by their texts: the state, the instructions, and keys and descriptions of options.
pub(super) fn flatten_texts(variables: &mut Map<String, Value>) {
    for name in ["state", "instructions"] {
        if let Some(value) = variables.get_mut(name) {
            *value = defused(&flattened(value, 0)).into();
        }
    }
    let options = variables.get_mut("options").and_then(Value::as_array_mut);
    for option in options.into_iter().flatten().filter_map(Value::as_object_mut) {
        for value in option.values_mut().filter(|value| !value.is_null()) {
            *value = defused(&flattened(value, 0)).into();
        }
    }
}

/// Writes a value. Entries of lists begin with `- `, and those of objects with their keys; inner ones are indented by two spaces.
fn flattened(value: &Value, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Array(items) => {
            let lines = items.iter().map(|item| {
                let text = flattened(item, depth + 1);
                format!("{indent}- {}", text.trim_start_matches([' ', '\t', '\n', '\r']))
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        Value::Object(map) => {
            let lines = map.iter().map(|(key, item)| match item {
                Value::Object(_) | Value::Array(_) => {
                    format!("{indent}{key}:\n{}", flattened(item, depth + 1))
                }
                item => format!("{indent}{key}: {}", flattened(item, 0)),
            });
            lines.collect::<Vec<_>>().join("\n")
        }
    }
}

/// Writes `<|name|>` as `<¦name¦>`.
fn defused(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("<|") {
        let (before, inner) = (&rest[..start], &rest[start + 2..]);
        safe += before;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let n_word = inner.bytes().take_while(|&byte| is_word(byte)).count();
        if n_word > 0 && inner[n_word..].starts_with("|>") {
            safe += "<¦";
            safe += &inner[..n_word];
            safe += "¦>";
            rest = &inner[n_word + 2..];
        } else {
            safe += "<|";
            rest = inner;
        }
    }
    safe + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_and_lists_are_labelled_lines() {
        let value = json!({ "name": "Ann", "open": true, "none": null, "list": [1, { "a": 2, "b": [3] }], "in": { "x": 1.5 } });
        assert_eq!(
            flattened(&value, 0),
            "name: Ann\nopen: True\nnone: \nlist:\n  - 1\n  - a: 2\n    b:\n      - 3\nin:\n  x: 1.5"
        );
    }

    #[test]
    fn control_tokens_are_defused() {
        let check = |text: &str, expected: &str| assert_eq!(defused(text), expected);
        check("a <|box_end|> b<|im_end|>", "a <¦box_end¦> b<¦im_end¦>");
        check("<|<|a|>|> <|a b|> <||> <|", "<|<¦a¦>|> <|a b|> <||> <|");
    }
}

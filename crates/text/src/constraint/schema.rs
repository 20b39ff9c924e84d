//! Prepares a JSON schema for the compiler of grammars.
//!
//! The specification and the compiler differ on common mistakes in schemas: an unknown `format`, or a non-string where names
//! must be strings, means nothing by the specification and is an error to the compiler. Invariant: the omitted parts could not
//! make an instance invalid.

use serde_json::Value;

/// Formats that are enforced.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];

/// Keywords with a schema.
const WITH_SCHEMA: [&str; 11] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Keywords with a list of schemas.
const WITH_LIST: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];

/// Keywords with named schemas.
const WITH_NAMES: [&str; 5] = [
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
];

/// Drops each keyword whose value means nothing.
pub(super) fn drop_what_says_nothing(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    let is_unknown = |format: &Value| format.as_str().is_some_and(|name| !FORMATS.contains(&name));
    if fields.get("format").is_some_and(is_unknown) {
        fields.remove("format");
    }
    if fields.get("uniqueItems") == Some(&Value::Bool(false)) {
        fields.remove("uniqueItems");
    }
    if fields.get("propertyNames").is_some_and(takes_every_name) {
        fields.remove("propertyNames");
    }
    for (keyword, value) in fields {
        let keyword = keyword.as_str();
        match value {
            Value::Object(named) if WITH_NAMES.contains(&keyword) => {
                named.values_mut().for_each(drop_what_says_nothing);
            }
            Value::Array(list) if WITH_LIST.contains(&keyword) => {
                list.iter_mut().for_each(drop_what_says_nothing);
            }
            value if WITH_SCHEMA.contains(&keyword) => drop_what_says_nothing(value),
            _ => {}
        }
    }
}

/// Returns whether a schema of names allows every name, which is a string.
fn takes_every_name(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            (fields.iter()).all(|(keyword, value)| keyword == "type" && value == "string")
        }
        other => *other == Value::Bool(true),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_every_kind_and_items_that_may_repeat_say_nothing() {
        let mut schema = json!({"propertyNames": {"type": "string"}, "uniqueItems": false,
            "items": {"propertyNames": true, "uniqueItems": true},
            "additionalProperties": {"propertyNames": {"type": "string", "maxLength": 3}}});
        drop_what_says_nothing(&mut schema);
        let expected = json!({"items": {"uniqueItems": true},
            "additionalProperties": {"propertyNames": {"type": "string", "maxLength": 3}}});
        assert_eq!(schema, expected);
    }

    #[test]
    fn unknown_formats_are_dropped_where_they_are_keywords_only() {
        let mut schema = json!({
            "format": "text",
            "properties": {"format": {"format": "path", "const": {"format": "path"}}, "day": {"format": "date"}},
            "items": [{"format": "x"}],
            "anyOf": [{"not": {"format": "x", "type": "string"}}],
            "default": {"format": "path"},
        });
        drop_what_says_nothing(&mut schema);
        let expected = json!({
            "properties": {"format": {"const": {"format": "path"}}, "day": {"format": "date"}},
            "items": [{}],
            "anyOf": [{"not": {"type": "string"}}],
            "default": {"format": "path"},
        });
        assert_eq!(schema, expected);
    }
}

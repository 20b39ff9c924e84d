//! Prepares a JSON schema for the compiler of grammars.
//!
//! Separate because the specification and the compiler differ in one thing that real schemas have: a `format` that is not
//! known means nothing by the specification, and is an error to the compiler. Invariant: what is left out here could not make
//! an instance invalid.

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

/// Drops each `format` that means nothing.
pub(super) fn drop_unknown_formats(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    let is_unknown = |format: &Value| format.as_str().is_some_and(|name| !FORMATS.contains(&name));
    if fields.get("format").is_some_and(is_unknown) {
        fields.remove("format");
    }
    for (keyword, value) in fields {
        let keyword = keyword.as_str();
        match value {
            Value::Object(named) if WITH_NAMES.contains(&keyword) => {
                named.values_mut().for_each(drop_unknown_formats);
            }
            Value::Array(list) if WITH_LIST.contains(&keyword) => {
                list.iter_mut().for_each(drop_unknown_formats);
            }
            value if WITH_SCHEMA.contains(&keyword) => drop_unknown_formats(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_formats_are_dropped_where_they_are_keywords_only() {
        let mut schema = json!({
            "format": "text",
            "properties": {"format": {"format": "path", "const": {"format": "path"}}, "day": {"format": "date"}},
            "items": [{"format": "x"}],
            "anyOf": [{"not": {"format": "x", "type": "string"}}],
            "default": {"format": "path"},
        });
        drop_unknown_formats(&mut schema);
        let expected = json!({
            "properties": {"format": {"const": {"format": "path"}}, "day": {"format": "date"}},
            "items": [{}],
            "anyOf": [{"not": {"type": "string"}}],
            "default": {"format": "path"},
        });
        assert_eq!(schema, expected);
    }
}

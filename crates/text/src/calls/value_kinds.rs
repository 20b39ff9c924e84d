//! [`ValueKinds`]: the kinds of JSON values that a schema allows.
//!
//! The parser and the grammar of calls with bare arguments must agree: is an argument a text, is it JSON, or can it be both?
//! Invariant: an unsupported schema allows all kinds.

use serde_json::Value;

use crate::constraint::Document;

/// Kinds of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueKinds(u8);

/// Selects the form of an argument outside of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// As it is: it can only be a text.
    Text,
    /// As JSON: it cannot be a text.
    Json,
    /// A text unchanged, anything else as JSON.
    Either,
}

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const INTEGER: u8 = 4;
const FRACTION: u8 = 8;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;
const ALL: u8 = 127;

/// Deepest nesting of combinations and references that is resolved.
const MAX_DEPTH: usize = 16;

/// Most schemas that are visited for one value.
const MAX_SCHEMAS: usize = 1000;

impl ValueKinds {
    /// Finds the kinds that `schema` allows; references resolve in the document `root`.
    pub(super) fn of(schema: &Value, root: &Document<'_>) -> Self {
        let mut n_left = MAX_SCHEMAS;
        Self(kinds(schema, root, MAX_DEPTH, &mut n_left))
    }

    /// Returns the names of the kinds.
    pub(super) fn names(self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for (kind, name) in [
            (NULL, "null"),
            (BOOLEAN, "boolean"),
            (STRING, "string"),
            (ARRAY, "array"),
            (OBJECT, "object"),
        ] {
            if self.0 & kind != 0 {
                names.push(name);
            }
        }
        match (self.0 & INTEGER != 0, self.0 & FRACTION != 0) {
            (_, true) => names.push("number"),
            (true, false) => names.push("integer"),
            (false, false) => {}
        }
        names
    }

    /// Returns whether every kind is allowed.
    pub(super) fn are_all(self) -> bool {
        self.0 == ALL
    }

    pub(super) fn written(self) -> Written {
        match (self.0 & STRING != 0, self.0 & !STRING != 0) {
            (true, false) => Written::Text,
            (true, true) => Written::Either,
            (false, _) => Written::Json,
        }
    }

    /// Returns whether they include the kind of `value`.
    pub(super) fn include(self, value: &Value) -> bool {
        let kind = kind_of(value);
        self.0 & kind != 0
    }
}

fn kinds(schema: &Value, root: &Document<'_>, depth: usize, n_left: &mut usize) -> u8 {
    let Some(fields) = schema.as_object().filter(|_| depth > 0 && *n_left > 0) else {
        return ALL;
    };
    *n_left -= 1;
    let mut allowed = match fields.get("type") {
        Some(Value::String(name)) => named(name),
        Some(Value::Array(names)) => {
            (names.iter().filter_map(Value::as_str).map(named)).fold(0, |all, kind| all | kind)
        }
        _ => ALL,
    };
    if let Some(only) = fields.get("const") {
        allowed &= kind_of(only);
    }
    if let Some(values) = fields.get("enum").and_then(Value::as_array) {
        allowed &= values.iter().map(kind_of).fold(0, |all, kind| all | kind);
    }
    for keyword in ["anyOf", "oneOf"] {
        if let Some(choices) = fields.get(keyword).and_then(Value::as_array) {
            allowed &= (choices.iter()).fold(0, |all, choice| all | kinds(choice, root, depth - 1, n_left));
        }
    }
    for part in fields
        .get("allOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        allowed &= kinds(part, root, depth - 1, n_left);
    }
    let reference = fields.get("$ref").and_then(Value::as_str);
    if let Some(part) = reference.and_then(|reference| root.referred(reference)) {
        allowed &= kinds(part, root, depth - 1, n_left);
    }
    allowed
}

fn named(name: &str) -> u8 {
    match name {
        "null" => NULL,
        "boolean" => BOOLEAN,
        "integer" => INTEGER,
        "number" => INTEGER | FRACTION,
        "string" => STRING,
        "array" => ARRAY,
        "object" => OBJECT,
        _ => ALL,
    }
}

fn kind_of(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => INTEGER,
        Value::Number(_) => FRACTION,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_says_how_its_values_are_written() {
        for (schema, written) in [
            (json!({"type": "string"}), Written::Text),
            (json!({"type": ["string"], "maxLength": 3}), Written::Text),
            (json!({"enum": ["a", "b"]}), Written::Text),
            (json!({"const": "a"}), Written::Text),
            (
                json!({"anyOf": [{"type": "string"}, {"const": "a"}]}),
                Written::Text,
            ),
            (json!({"type": ["string", "null"], "enum": ["a"]}), Written::Text),
            (json!({"type": "integer"}), Written::Json),
            (json!({"type": ["array", "object"]}), Written::Json),
            (json!({"enum": [1, null]}), Written::Json),
            (json!({"type": ["string", "null"]}), Written::Either),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
                Written::Either,
            ),
            (json!({"enum": ["a", 1]}), Written::Either),
            (json!({}), Written::Either),
            (json!(true), Written::Either),
            (json!({"$ref": "#/$defs/absent"}), Written::Either),
            (json!({"$ref": "#/$defs/again"}), Written::Either),
            (json!({"type": "text"}), Written::Either),
            (json!({"$ref": "#/$defs/text"}), Written::Text),
            (
                json!({"allOf": [{"$ref": "#/$defs/text"}], "default": "a"}),
                Written::Text,
            ),
            (
                json!({"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]}),
                Written::Either,
            ),
            (json!({"oneOf": [{"$ref": "#/$defs/number"}]}), Written::Json),
        ] {
            let root = json!({"$defs": {"text": {"type": "string"}, "number": {"allOf": [{"type": "integer"}]},
                "again": {"anyOf": [{"$ref": "#/$defs/again"}, {"$ref": "#/$defs/again"}]}}});
            let document = Document::of(&root);
            assert_eq!(ValueKinds::of(&schema, &document).written(), written, "{schema}");
        }
    }

    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        let kinds = |schema: Value| ValueKinds::of(&schema, &Document::of(&schema));
        let integer = kinds(json!({"type": ["integer", "string"]}));
        assert!(integer.include(&json!(3)) && integer.include(&json!(3.0)));
        assert!(!integer.include(&json!(3.5)) && !integer.include(&json!(true)));
        assert!(kinds(json!({"type": "number"})).include(&json!(3.5)));
        assert_eq!(integer.names(), ["string", "integer"]);
    }
}

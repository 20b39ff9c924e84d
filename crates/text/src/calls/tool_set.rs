//! [`ToolSet`]: the tools that a request offers, as parsers need them.
//!
//! Every format asks two questions: is there a tool of this name, and is this argument a text? Invariant: for an unsupported
//! schema the second answer is open, and the value's form decides.

use serde_json::Value;

use super::{
    see_through::seen_through,
    value_kinds::{ValueKinds, Written},
};
use crate::constraint::Document;

/// The tools that a request offers: names, and schemas of their parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolSet(Vec<Tool>);

#[derive(Clone, Debug, PartialEq)]
struct Tool {
    name: String,
    schema: Value,
    is_strict: bool,
}

impl ToolSet {
    /// Tools by name and JSON schema of their parameters.
    pub fn new(tools: impl IntoIterator<Item = (String, Value)>) -> Self {
        let tool = |(name, schema)| Tool {
            name,
            schema,
            is_strict: false,
        };
        Self(tools.into_iter().map(tool).collect())
    }

    /// Reads a list in the form of OpenAI's `tools`; entries without a name are ignored.
    pub fn from_openai(tools: &Value) -> Self {
        let tool = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some(Tool {
                name,
                schema: function.get("parameters").cloned().unwrap_or(Value::Null),
                is_strict: function.get("strict") == Some(&Value::Bool(true)),
            })
        };
        Self(tools.as_array().into_iter().flatten().filter_map(tool).collect())
    }

    /// Names and schemas, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|tool| (tool.name.as_str(), &tool.schema))
    }

    /// Lists names, schemas, and whether the tool is strict.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&str, &Value, bool)> {
        (self.0.iter()).map(|tool| (tool.name.as_str(), &tool.schema, tool.is_strict))
    }

    /// Returns whether no tool is offered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether there is a tool of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|tool| tool.name == name)
    }

    /// Returns the kinds of values that the schema of an argument allows; `None` if it does not name the
    /// argument.
    fn kinds(&self, name: &str, key: &str) -> Option<ValueKinds> {
        let tool = self.0.iter().find(|tool| tool.name == name)?;
        let document = Document::of(&tool.schema);
        let schema = seen_through(&tool.schema, &document);
        let argument = schema.get("properties")?.get(key)?;
        Some(ValueKinds::of(argument, &document))
    }

    /// Returns whether an argument is a text by its schema; `None` if it may be a text or something else.
    pub(super) fn takes_text(&self, name: &str, key: &str) -> Option<bool> {
        match self.kinds(name, key)?.written() {
            Written::Text => Some(true),
            Written::Json => Some(false),
            Written::Either => None,
        }
    }

    /// Converts an argument in bare text to JSON. If it may be a text, other values must be of an allowed kind.
    pub(super) fn argument_json(&self, name: &str, key: &str, text: &str) -> String {
        let as_text = || Value::from(text).to_string();
        let trimmed = text.trim();
        let kinds = self.kinds(name, key);
        match kinds.map(ValueKinds::written) {
            Some(Written::Text) => as_text(),
            Some(Written::Json) => match trimmed {
                "True" => "true".to_owned(),
                "False" => "false".to_owned(),
                "None" => "null".to_owned(),
                _ => match serde_json::from_str::<Value>(trimmed) {
                    Ok(_) => trimmed.to_owned(),
                    Err(_) => as_text(),
                },
            },
            Some(Written::Either) | None => match serde_json::from_str::<Value>(trimmed) {
                Ok(value) if kinds.is_none_or(|kinds| kinds.include(&value)) => trimmed.to_owned(),
                _ => as_text(),
            },
        }
    }
}

/// Largest number of references that are followed from one schema to the next.
const MAX_REFERENCES: usize = 16;

/// Returns whether a schema of arguments allows objects, by its `type` or that of the schema that it refers to. Without a schema
/// every object is allowed.
pub fn takes_objects(schema: &Value) -> bool {
    let mut of = schema;
    for _ in 0..MAX_REFERENCES {
        match (&of["type"], of["$ref"].as_str()) {
            _ if of.is_null() || *of == Value::Bool(true) => return true,
            _ if !of.is_object() => return false,
            (Value::String(kind), _) => return kind == "object",
            (Value::Array(kinds), _) => return kinds.iter().any(|kind| kind == "object"),
            (_, Some(reference)) => {
                let within = reference.strip_prefix('#');
                match within.and_then(|pointer| schema.pointer(pointer)) {
                    Some(referred) => of = referred,
                    // The target is elsewhere; compiling refuses it.
                    None => return true,
                }
            }
            (_, None) => return true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_of_arguments_lets_objects_through() {
        for schema in [
            json!(null),
            json!(true),
            json!({}),
            json!({"type": "object"}),
            json!({"type": ["null", "object"]}),
            json!({"properties": {"type": {"type": "string"}}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "object"}}}),
            json!({"$ref": "#"}),
            json!({"$ref": "https://example.com/schema"}),
        ] {
            assert!(takes_objects(&schema), "{schema}");
        }
        for schema in [
            json!(false),
            json!([]),
            json!({"type": "string"}),
            json!({"type": ["null", "array"]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}}),
        ] {
            assert!(!takes_objects(&schema), "{schema}");
        }
    }

    #[test]
    fn a_bare_argument_is_read_as_its_schema_allows() {
        let tools = ToolSet::from_openai(&json!([{"function": {"name": "f", "parameters": {"properties": {
            "open": {}, "id": {"type": ["string", "integer"]}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "on": {"type": "boolean"}, "text": {"type": "string"}}}}}]));
        for (key, text, json) in [
            ("open", "true", "true"),
            ("open", "{\"a\": 1}", "{\"a\": 1}"),
            ("open", "so it is", "\"so it is\""),
            ("id", "7", "7"),
            ("id", "seven", "\"seven\""),
            ("id", "true", "\"true\""),
            ("id", "7.5", "\"7.5\""),
            ("note", "null", "null"),
            ("note", "5", "\"5\""),
            ("note", "\"quoted\"", "\"quoted\""),
            ("on", "True", "true"),
            ("text", "5", "\"5\""),
            ("unnamed", "5", "5"),
        ] {
            assert_eq!(tools.argument_json("f", key, text), json, "{key}: {text}");
        }
    }
}

//! [`ToolSet`]: the tools that a request offers, as far as parsers need them.
//!
//! Separate because every format asks the same two questions: is there a tool of this name, and is this argument a text?
//! Invariant: a schema that is not understood answers neither way, and the value's own look decides.

use serde_json::Value;

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

    /// Reads a list in the form of OpenAI's `tools`; what has no name is left out.
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

    /// Names, schemas, and whether calls are to be held to them in any case.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&str, &Value, bool)> {
        (self.0.iter()).map(|tool| (tool.name.as_str(), &tool.schema, tool.is_strict))
    }

    /// Whether none is offered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is a tool of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|tool| tool.name == name)
    }

    /// Whether an argument is a text by its schema; `None` where the schema does not say.
    pub(super) fn takes_text(&self, name: &str, key: &str) -> Option<bool> {
        let tool = self.0.iter().find(|tool| tool.name == name)?;
        let argument = tool.schema.get("properties")?.get(key)?;
        match argument.get("type") {
            Some(Value::String(kind)) => Some(kind == "string"),
            Some(Value::Array(kinds)) if !kinds.iter().any(|kind| kind == "string") => Some(false),
            None if argument.get("enum").is_some() => {
                let values = argument["enum"].as_array()?;
                values.iter().all(Value::is_string).then_some(true)
            }
            _ => None,
        }
    }

    /// An argument written as bare text, as JSON.
    pub(super) fn argument_json(&self, name: &str, key: &str, text: &str) -> String {
        let as_text = || Value::from(text).to_string();
        let trimmed = text.trim();
        match self.takes_text(name, key) {
            Some(true) => as_text(),
            of_schema => match trimmed {
                "True" if of_schema.is_some() => "true".to_owned(),
                "False" if of_schema.is_some() => "false".to_owned(),
                "None" if of_schema.is_some() => "null".to_owned(),
                _ => match serde_json::from_str::<Value>(trimmed) {
                    Ok(_) => trimmed.to_owned(),
                    Err(_) => as_text(),
                },
            },
        }
    }
}

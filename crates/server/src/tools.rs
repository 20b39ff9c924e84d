//! Tools as requests offer them, checked, and calls as answers write them.
//!
//! Separate from the endpoints because three of them offer tools in different words for the same thing. Invariant: what
//! reaches the chat template is a list in OpenAI's form in which every tool has a name of its own.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenmill::{Prompt, TextEnd};
use tokenmill_sched::FinishReason;

use crate::ApiError;

/// Longest name of a tool, as in the official API.
const MAX_NAME_BYTES: usize = 128;

/// What a request says of tools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    /// OpenAI's form; empty where none is offered.
    list: Vec<Value>,
    /// Whether an answer may hold one call only.
    is_single: bool,
}

/// Which tools the model is to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

/// A tool in OpenAI's form.
#[derive(Debug, Deserialize)]
struct FunctionTool {
    name: Option<String>,
    description: Option<String>,
    #[serde(alias = "input_schema")]
    parameters: Option<Value>,
    strict: Option<bool>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Tools {
    /// Reads tools, each with the path of what describes it: its name, its description and its schema.
    ///
    /// # Errors
    /// A tool without a name, two of one name, a schema that is no object, a `choice` that is not offered, by path.
    pub(crate) fn new(
        tools: impl IntoIterator<Item = (String, Value)>,
        choice: &Choice,
        is_parallel: bool,
    ) -> Result<Self, ApiError> {
        let mut names = HashSet::new();
        let mut list = Vec::new();
        for (path, value) in tools {
            let tool: FunctionTool = serde_path_to_error::deserialize(&value).map_err(|error| {
                ApiError::invalid(format!("{path}.{}", error.path()), error.inner().to_string())
            })?;
            let at = |field: &str| format!("{path}.{field}");
            let name = tool.name.unwrap_or_default();
            if name.trim().is_empty() {
                return Err(ApiError::invalid(at("name"), "a tool needs a name"));
            }
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
            if name.len() > MAX_NAME_BYTES || !name.chars().all(is_plain) {
                let reason =
                    format!("a name is at most {MAX_NAME_BYTES} letters, digits, `_`, `-`, `.`, `:` or `/`");
                return Err(ApiError::invalid(at("name"), reason));
            }
            if !names.insert(name.clone()) {
                return Err(ApiError::invalid(
                    at("name"),
                    format!("two tools are called `{name}`"),
                ));
            }
            let parameters = tool
                .parameters
                .unwrap_or_else(|| json!({"type": "object", "properties": {}}));
            if !parameters.is_object() {
                return Err(ApiError::invalid(
                    at("parameters"),
                    "expected a JSON schema, which is an object",
                ));
            }
            if tool.strict == Some(true) {
                return Err(ApiError::UnsupportedField {
                    param: at("strict"),
                    reason: "calls are not held to their schema yet; leave it out",
                });
            }
            crate::fields::refuse_others(&path, &tool.others, &["type", "cache_control"])?;
            let mut function = json!({ "name": name, "parameters": parameters });
            // Templates read it of every tool.
            function["description"] = tool.description.unwrap_or_default().into();
            list.push(json!({ "type": "function", "function": function }));
        }
        match choice {
            Choice::None => list.clear(),
            Choice::Auto => {}
            Choice::Required if list.is_empty() => {
                return Err(ApiError::invalid("tool_choice", "needs `tools`"));
            }
            Choice::Named(name) if !names.contains(name) => {
                return Err(ApiError::invalid(
                    "tool_choice",
                    format!("there is no tool `{name}` in `tools`"),
                ));
            }
            Choice::Required | Choice::Named(_) => {
                return Err(ApiError::UnsupportedField {
                    param: "tool_choice".to_owned(),
                    reason: "calls cannot be forced yet; use `auto`",
                });
            }
        }
        Ok(Self {
            list,
            is_single: !is_parallel,
        })
    }

    /// The list for the chat template.
    pub(crate) fn to_template(&self) -> Option<Value> {
        (!self.list.is_empty()).then(|| Value::Array(self.list.clone()))
    }

    /// Whether an answer may hold one call only.
    pub(crate) fn is_single(&self) -> bool {
        self.is_single
    }

    /// Has a prompt's answers read as these tools ask for.
    pub(crate) fn read(&self, mut prompt: Prompt) -> Prompt {
        if self.is_single {
            prompt.reader = prompt.reader.map(tokenmill::ReplyReader::single_call);
        }
        prompt
    }
}

impl Choice {
    /// Reads OpenAI's `tool_choice`, of either of its endpoints.
    ///
    /// # Errors
    /// Anything else.
    pub(crate) fn of_openai(choice: Option<&Value>) -> Result<Self, ApiError> {
        let Some(choice) = choice else {
            return Ok(Self::Auto);
        };
        match choice.as_str() {
            Some("auto") => return Ok(Self::Auto),
            Some("none") => return Ok(Self::None),
            Some("required") => return Ok(Self::Required),
            _ => {}
        }
        let name = choice.get("function").unwrap_or(choice).get("name");
        match (choice["type"].as_str(), name.and_then(Value::as_str)) {
            (Some("function"), Some(name)) => Ok(Self::Named(name.to_owned())),
            _ => Err(ApiError::invalid(
                "tool_choice",
                "expected `auto`, `none`, `required`, or an object with `type: \"function\"` and a name",
            )),
        }
    }
}

/// Checks the calls of an earlier answer and brings them into the form that chat templates take.
///
/// # Errors
/// A call without a name, or whose arguments are no object, by path.
pub(crate) fn earlier_calls(path: &str, calls: Vec<Value>) -> Result<Value, ApiError> {
    let call = |(index, call): (usize, Value)| {
        let path = format!("{path}[{index}]");
        if call.get("type").is_some_and(|kind| kind != "function") {
            return Err(ApiError::UnsupportedField {
                param: format!("{path}.type"),
                reason: "a call is one of a function",
            });
        }
        let function = &call["function"];
        earlier_call(
            &format!("{path}.function"),
            call["id"].as_str(),
            function["name"].as_str(),
            &function["arguments"],
        )
    };
    calls.into_iter().enumerate().map(call).collect()
}

/// Checks one such call. Arguments are an object, or one written as text.
///
/// # Errors
/// As [`earlier_calls`].
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
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        Value::Null => json!({}),
        other => other.clone(),
    };
    if !arguments.is_object() {
        return Err(ApiError::invalid(
            format!("{path}.arguments"),
            "expected a JSON object, or one written as text",
        ));
    }
    Ok(json!({
        "id": id.unwrap_or_default(),
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    }))
}

/// Whether an answer ended to have its calls made.
pub(crate) fn ends_in_calls(end: &TextEnd) -> bool {
    end.n_calls > 0 && end.stopped_by.is_none() && end.finished.reason != FinishReason::Length
}

/// Puts what a request says of reasoning into the variables that templates have for it.
pub(crate) fn set_effort(kwargs: &mut Map<String, Value>, effort: &str) {
    let thinks = effort != "none";
    kwargs.entry("reasoning_effort").or_insert_with(|| match effort {
        "none" | "minimal" => "low".into(),
        "xhigh" | "max" => "high".into(),
        other => other.into(),
    });
    set_thinking(kwargs, thinks);
}

/// Switches thinking on or off, in the words of the templates that can.
pub(crate) fn set_thinking(kwargs: &mut Map<String, Value>, thinks: bool) {
    for name in ["enable_thinking", "thinking"] {
        kwargs.entry(name).or_insert(thinks.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(list: &Value, choice: &Value) -> Result<Tools, Option<String>> {
        let list = list
            .as_array()
            .cloned()
            .unwrap_or_default()
            .into_iter()
            .enumerate();
        let list = list.map(|(index, tool)| (format!("tools[{index}].function"), tool));
        let choice = Choice::of_openai(Some(choice)).map_err(|error| error.param().map(str::to_owned))?;
        Tools::new(list, &choice, true).map_err(|error| error.param().map(str::to_owned))
    }

    #[test]
    fn what_is_wrong_with_tools_is_named() {
        let refused = |list: Value, choice: Value| tools(&list, &choice).unwrap_err().unwrap();
        let auto = || json!("auto");
        assert_eq!(refused(json!([{}]), auto()), "tools[0].function.name");
        assert_eq!(
            refused(json!([{"name": "a b"}]), auto()),
            "tools[0].function.name"
        );
        assert_eq!(
            refused(json!([{"name": "a"}, {"name": "a"}]), auto()),
            "tools[1].function.name"
        );
        assert_eq!(
            refused(json!([{"name": "a", "parameters": [1]}]), auto()),
            "tools[0].function.parameters"
        );
        assert_eq!(
            refused(
                json!([{"name": "a"}]),
                json!({"type": "function", "function": {"name": "b"}})
            ),
            "tool_choice"
        );
        assert_eq!(refused(json!([]), json!("required")), "tool_choice");
        assert_eq!(refused(json!([]), json!("whatever")), "tool_choice");
        let none = tools(&json!([{"name": "a"}]), &json!("none")).unwrap();
        assert_eq!(none.to_template(), None);
        let some = tools(&json!([{"name": "a"}]), &auto())
            .unwrap()
            .to_template()
            .unwrap();
        assert_eq!(some[0]["function"]["name"], "a");
    }

    #[test]
    fn earlier_calls_have_a_name_and_an_object() {
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
        for arguments in [json!("[1]"), json!("{"), json!([]), json!(3)] {
            assert_eq!(
                check(json!({"name": "f", "arguments": arguments})),
                Err(Some("m[0].function.arguments".to_owned()))
            );
        }
        let call = check(json!({"name": "f", "arguments": "{\"a\": 1}"})).unwrap();
        assert_eq!(call[0]["function"]["arguments"], json!({"a": 1}));
    }
}

//! Checks the tools that a request offers.
//!
//! Three endpoints offer tools, each in another form. Invariant: the chat template gets a list in OpenAI's
//! form in which every tool has a name of its own.

use std::collections::{BTreeSet, HashMap, HashSet};

use axum::{http::HeaderValue, response::Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenmill::{Conversation, ToolChoice, stream::TextEnd, tools::takes_objects};
use tokenmill_sched::FinishReason;

use crate::{
    ApiError,
    errors::api_error::shortened,
    requests::{constraints::ValueBudget, earlier_calls::CUSTOM_INPUT},
};

/// Longest name of a tool, as in the official API.
const MAX_NAME_BYTES: usize = 128;

/// Kinds of tools that are left out and named.
const MAX_NAMED_KINDS: usize = 16;

/// Explains why a tool cannot be called.
const LEFT_OUT: &str = "would run on its vendor's servers, and was left out";

/// Holds the tools of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    /// OpenAI's form; empty without tools.
    list: Vec<Value>,
    /// Whether an answer may hold one call only.
    is_single: bool,
    /// Whether the request says that none is to be called.
    is_declined: bool,
    choice: ToolChoice,
    /// Names of custom tools, which take any text instead of arguments.
    custom: BTreeSet<String>,
}

/// The tools that are left out of a request, because they run on the servers of their providers.
#[derive(Clone, Debug, Default)]
pub(crate) struct IgnoredTools {
    kinds: BTreeSet<String>,
    /// The kinds of the tools with names, by name.
    by_name: HashMap<String, String>,
}

impl IgnoredTools {
    /// Leaves out a tool. Text beyond the limit of a header is cut.
    pub(crate) fn add(&mut self, kind: &str, tool: &Value) {
        let kind: String = kind.chars().take(MAX_NAME_BYTES).collect();
        if self.kinds.len() == MAX_NAMED_KINDS && !self.kinds.contains(&kind) {
            return;
        }
        self.kinds.insert(kind.clone());
        if let Some(name) = tool["name"].as_str().filter(|name| name.len() <= MAX_NAME_BYTES)
            && self.by_name.len() < MAX_NAMED_KINDS
        {
            self.by_name.insert(name.to_owned(), kind);
        }
    }

    fn list(&self) -> String {
        let kinds: Vec<&str> = self.kinds.iter().map(String::as_str).collect();
        kinds.join(", ")
    }

    /// Names them in a header of an answer, where there are any.
    pub(crate) fn named_in(&self, mut response: Response) -> Response {
        if let (false, Ok(value)) = (self.kinds.is_empty(), HeaderValue::from_str(&self.list())) {
            response.headers_mut().insert("x-tokenmill-ignored-tools", value);
        }
        response
    }

    /// Why the model cannot be made to call a tool: none is left.
    fn none_left(&self) -> ApiError {
        let reason = if self.kinds.is_empty() {
            "needs `tools`".to_owned()
        } else {
            format!("no tool is left to call: {} {LEFT_OUT}", self.list())
        };
        ApiError::invalid("tool_choice", reason)
    }

    /// Why the model cannot be made to call a tool that is not there.
    fn not_there(&self, name: &str) -> ApiError {
        let reason = match self.by_name.get(name) {
            Some(kind) => format!("`{name}`, which is {kind}, {LEFT_OUT}"),
            None => format!("there is no tool `{}` in `tools`", shortened(name)),
        };
        ApiError::invalid("tool_choice", reason)
    }
}

/// Which tools the model is to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Auto,
    None,
    Required,
    Named(String),
    /// Only these.
    Allowed {
        names: Vec<String>,
        is_required: bool,
    },
}

/// A tool in OpenAI's form.
#[derive(Debug, Deserialize)]
struct FunctionTool {
    name: Option<String>,
    description: Option<String>,
    #[serde(alias = "input_schema")]
    parameters: Option<Value>,
    strict: Option<bool>,
    /// In Anthropic's API: arguments that show how it is called.
    #[serde(default)]
    input_examples: Vec<Value>,
    /// In Anthropic's API: who may call it.
    #[serde(default)]
    allowed_callers: Vec<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Fields of a tool that change nothing: prefixes are always cached, arguments are always streamed, and the model gets every tool
/// at the start.
const TOOL_LABELS: &[&str] = &["type", "cache_control", "eager_input_streaming", "defer_loading"];

/// Checks that the model itself may call a tool.
///
/// # Errors
/// Only code that Anthropic's servers run may.
fn check_callers(path: &str, callers: &[String]) -> Result<(), ApiError> {
    if callers.is_empty() || callers.iter().any(|caller| caller == "direct") {
        return Ok(());
    }
    Err(ApiError::UnsupportedField {
        param: format!("{path}.allowed_callers"),
        reason: "the model calls a tool itself, which is `direct`; there is no code execution",
    })
}

/// Writes examples of arguments below the description of a tool: templates have no other place for them.
///
/// # Errors
/// Fails on an example that is not an object, and names the path.
fn add_examples(description: &mut String, path: &str, examples: &[Value]) -> Result<(), ApiError> {
    if let Some(index) = examples.iter().position(|example| !example.is_object()) {
        return Err(ApiError::invalid(
            format!("{path}[{index}]"),
            "expected a JSON object",
        ));
    }
    if !examples.is_empty() {
        description.push_str("\n\nExamples of arguments:");
        for example in examples {
            description.push('\n');
            description.push_str(&example.to_string());
        }
    }
    Ok(())
}

impl Tools {
    /// Reads tools, each with the path of its description, which has its name and schema. Tools of the kinds
    /// in `ignored` were left out.
    ///
    /// # Errors
    /// Fails on a tool without a name, a repeated name, a schema that is not an object, or an unknown `choice`, and names the path.
    pub(crate) fn new(
        tools: impl IntoIterator<Item = (String, Value)>,
        choice: &Choice,
        is_parallel: bool,
        ignored: &IgnoredTools,
    ) -> Result<Self, ApiError> {
        let mut names = HashSet::new();
        let mut values = ValueBudget::default();
        let mut list = Vec::new();
        for (path, value) in tools {
            if value.is_null() {
                return Err(ApiError::invalid(path, "this field is required"));
            }
            if !value.is_object() {
                return Err(ApiError::invalid(path, "expected an object with a `name`"));
            }
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
            if !takes_objects(&parameters) {
                let reason = "arguments are an object, which the schema's `type` does not allow";
                return Err(ApiError::invalid(at("parameters"), reason));
            }
            // All of them go into one grammar.
            values.take(&at("parameters"), &parameters)?;
            crate::requests::fields::refuse_others(&path, &tool.others, TOOL_LABELS)?;
            check_callers(&path, &tool.allowed_callers)?;
            // Templates read it of every tool.
            let mut description = tool.description.unwrap_or_default();
            add_examples(&mut description, &at("input_examples"), &tool.input_examples)?;
            // The order matters: templates write the object as it is, and models were trained on this order.
            let mut function = json!({ "name": name, "description": description, "parameters": parameters });
            if tool.strict == Some(true) {
                function["strict"] = true.into();
            }
            list.push(json!({ "type": "function", "function": function }));
        }
        let is_declined = *choice == Choice::None;
        let choice = match choice {
            Choice::None => {
                list.clear();
                ToolChoice::Auto
            }
            Choice::Auto => ToolChoice::Auto,
            Choice::Required if list.is_empty() => return Err(ignored.none_left()),
            Choice::Required => ToolChoice::Required,
            Choice::Named(name) if !names.contains(name) => return Err(ignored.not_there(name)),
            Choice::Named(name) => ToolChoice::Named(name.clone()),
            Choice::Allowed {
                names: allowed,
                is_required,
            } => {
                if let Some(name) = allowed.iter().find(|name| !names.contains(*name)) {
                    return Err(ignored.not_there(name));
                }
                let allowed: HashSet<&str> = allowed.iter().map(String::as_str).collect();
                let is_allowed = |name: &str| allowed.contains(name);
                list.retain(|tool: &Value| tool["function"]["name"].as_str().is_some_and(is_allowed));
                if *is_required {
                    ToolChoice::Required
                } else {
                    ToolChoice::Auto
                }
            }
        };
        Ok(Self {
            list,
            is_single: !is_parallel,
            is_declined,
            choice,
            custom: BTreeSet::new(),
        })
    }

    /// The tools that a request offers in OpenAI's form.
    ///
    /// # Errors
    /// Fails on invalid tools or an invalid choice, and names the path.
    pub(crate) fn of_functions(
        tools: Vec<Value>,
        tool_choice: Option<&Value>,
        is_parallel: bool,
    ) -> Result<Self, ApiError> {
        let choice = Choice::of_openai(tool_choice)?;
        let mut functions = Vec::new();
        let mut custom = BTreeSet::new();
        for (index, tool) in tools.into_iter().enumerate() {
            let path = format!("tools[{index}]");
            let Value::Object(mut tool) = tool else {
                return Err(ApiError::invalid(
                    path,
                    "expected an object with `type` and `function`",
                ));
            };
            if tool.get("type").is_some_and(|kind| kind == "custom") {
                let path = format!("{path}.custom");
                let mut tool = tool.remove("custom").unwrap_or_default();
                let format = tool.as_object_mut().and_then(|tool| tool.remove("format"));
                if format.is_some_and(|format| !format.is_null() && format["type"] != "text") {
                    return Err(ApiError::UnsupportedField {
                        param: format!("{path}.format"),
                        reason: "the text of a custom tool cannot be constrained",
                    });
                }
                if let Some(tool) = tool.as_object_mut() {
                    custom.extend(tool.get("name").and_then(Value::as_str).map(str::to_owned));
                    let text = json!({ "type": "object", "properties": { CUSTOM_INPUT: { "type": "string" } },
                        "required": [CUSTOM_INPUT], "additionalProperties": false });
                    tool.insert("parameters".to_owned(), text);
                }
                functions.push((path, tool));
                continue;
            }
            if tool.get("type").is_none_or(|kind| kind != "function") {
                return Err(ApiError::UnsupportedField {
                    param: format!("{path}.type"),
                    reason: "a tool must be a function or a custom tool",
                });
            }
            let function = tool.remove("function").unwrap_or_default();
            functions.push((format!("{path}.function"), function));
        }
        let tools = Self::new(functions, &choice, is_parallel, &IgnoredTools::default())?;
        Ok(Self { custom, ..tools })
    }

    /// Returns the names of custom tools, which take any text instead of arguments.
    pub(crate) fn custom(&self) -> &BTreeSet<String> {
        &self.custom
    }

    /// Adds the tools to a conversation.
    pub(crate) fn offer(&self, conversation: Conversation) -> Conversation {
        Conversation {
            tools: (!self.list.is_empty()).then(|| Value::Array(self.list.clone())),
            tool_choice: self.choice.clone(),
            is_single_call: self.is_single,
            ..conversation
        }
    }

    /// Whether an answer may hold one call only.
    pub(crate) fn is_single(&self) -> bool {
        self.is_single
    }

    /// The choice in the form of `/v1/responses`.
    pub(crate) fn choice_of_responses(&self) -> Value {
        match &self.choice {
            ToolChoice::Auto if self.is_declined => "none".into(),
            ToolChoice::Auto => "auto".into(),
            ToolChoice::Required => "required".into(),
            ToolChoice::Named(name) => json!({ "type": "function", "name": name }),
        }
    }

    /// The tools in the form of `/v1/responses`.
    pub(crate) fn flat(&self) -> Value {
        let flat = |tool: &Value| {
            let mut tool = tool["function"].clone();
            tool["type"] = "function".into();
            tool["strict"] = (tool["strict"] == true).into();
            tool
        };
        self.list.iter().map(flat).collect()
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
        let refused = || {
            Err(ApiError::invalid(
                "tool_choice",
                "expected `auto`, `none`, `required`, or an object with `type: \"function\"` and a name, or with `type: \"allowed_tools\"`",
            ))
        };
        let name_of = |tool: &Value| {
            let described = tool
                .get("function")
                .or_else(|| tool.get("custom"))
                .unwrap_or(tool);
            let name = described.get("name")?.as_str()?;
            (tool["type"] == "function" || tool["type"] == "custom").then(|| name.to_owned())
        };
        if choice["type"] == "allowed_tools" {
            let allowed = choice.get("allowed_tools").unwrap_or(choice);
            let tools = allowed["tools"].as_array().into_iter().flatten();
            let names: Option<Vec<String>> = tools.map(name_of).collect();
            let is_required = match allowed["mode"].as_str() {
                Some("auto") => false,
                Some("required") => true,
                _ => return refused(),
            };
            return match names {
                Some(names) if !names.is_empty() => Ok(Self::Allowed { names, is_required }),
                _ => refused(),
            };
        }
        name_of(choice).map_or_else(refused, |name| Ok(Self::Named(name)))
    }
}

/// Whether an answer ended to have its calls made.
pub(crate) fn ends_in_calls(end: &TextEnd) -> bool {
    end.n_calls > 0 && end.stopped_by.is_none() && end.finished.reason != FinishReason::Length
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
        Tools::new(list, &choice, true, &IgnoredTools::default())
            .map_err(|error| error.param().map(str::to_owned))
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
        for parameters in [
            json!({"type": "string"}),
            json!({"type": "array"}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}),
        ] {
            let list = json!([{"name": "a"}, {"name": "b", "parameters": parameters}]);
            assert_eq!(refused(list, auto()), "tools[1].function.parameters");
        }
        let large = |n_values: usize| json!({"properties": {"a": {"enum": vec![0; n_values]}}});
        let list = json!([{"name": "a", "parameters": large(40_000)}]);
        assert!(tools(&list, &auto()).is_ok());
        let list =
            json!([{"name": "a", "parameters": large(40_000)}, {"name": "b", "parameters": large(40_000)}]);
        assert_eq!(refused(list, auto()), "tools[1].function.parameters");
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
        assert_eq!(
            (none.flat(), none.choice_of_responses()),
            (json!([]), json!("none"))
        );
        let silent = tools(&json!([]), &auto()).unwrap();
        assert_eq!(silent.choice_of_responses(), "auto");
        assert_eq!(refused(json!([null]), auto()), "tools[0].function");
        assert_eq!(refused(json!(["a"]), auto()), "tools[0].function");
        let some = tools(&json!([{"name": "a", "strict": true}]), &auto()).unwrap();
        assert_eq!(some.flat()[0]["name"], "a");
        assert_eq!(some.flat()[0]["strict"], true);
    }

    #[test]
    fn tool_fields_keep_trained_order() {
        let list =
            json!([{"parameters": {"type": "object"}, "strict": true, "name": "a", "description": "Does."}]);
        let tools = tools(&list, &json!("auto")).unwrap();
        assert_eq!(
            Value::Array(tools.list).to_string(),
            r#"[{"type":"function","function":{"name":"a","description":"Does.","parameters":{"type":"object"},"strict":true}}]"#
        );
    }

    #[test]
    fn a_tool_has_examples_in_its_description_and_is_called_by_the_model() {
        let tool = |more: Value| {
            let mut tool = json!({"name": "a", "description": "Does."});
            tool.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            tools(&json!([tool]), &json!("auto"))
        };
        let told = tool(
            json!({"input_examples": [{"x": 1}, {"x": 2}], "eager_input_streaming": true,
            "defer_loading": true, "allowed_callers": ["direct", "code_execution_20250825"]}),
        );
        let told = told.unwrap().flat()[0]["description"].clone();
        assert_eq!(told, "Does.\n\nExamples of arguments:\n{\"x\":1}\n{\"x\":2}");
        for (more, param) in [
            (json!({"input_examples": [{}, 3]}), "input_examples[1]"),
            (
                json!({"allowed_callers": ["code_execution_20250825"]}),
                "allowed_callers",
            ),
            (json!({"colour": "red"}), "colour"),
        ] {
            let found = tool(more).unwrap_err();
            assert_eq!(found, Some(format!("tools[0].function.{param}")));
        }
    }

    #[test]
    fn choices_are_read_in_every_form() {
        let list = json!([{"name": "a"}, {"name": "b"}]);
        let given = |choice: Value| tools(&list, &choice).unwrap().choice_of_responses();
        assert_eq!(given(json!("required")), "required");
        let named = json!({"type": "function", "name": "b"});
        assert_eq!(given(named.clone()), named);
        assert_eq!(
            given(json!({"type": "function", "function": {"name": "b"}})),
            named
        );
        let allowed = |mode: &str, name: &str| {
            tools(
                &list,
                &json!({"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name}]}),
            )
        };
        let one = allowed("required", "b").unwrap();
        assert_eq!(
            (one.flat().as_array().unwrap().len(), one.choice_of_responses()),
            (1, json!("required"))
        );
        assert_eq!(allowed("auto", "c").unwrap_err().unwrap(), "tool_choice");
        assert_eq!(allowed("some", "a").unwrap_err().unwrap(), "tool_choice");
    }
}

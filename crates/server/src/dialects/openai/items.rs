//! The items of a `/v1/responses` request, and their conversion for chat templates.
//!
//! Agents send many kinds. Invariant: an item is read, or left out and named, or refused by its path.

use std::collections::BTreeSet;

use axum::{http::HeaderValue, response::Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    message::{Message, TemplateMessage, Wording, template_message},
    parts::Joined,
};
use crate::{
    ApiError,
    requests::{
        earlier_calls::earlier_call,
        images::{self, Parts},
    },
};

pub(super) const NO_STATE: &str =
    "only whole answers are stored: `previous_response_id` continues one; else send the items in `input`";

/// The input of a responses request.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of messages")]
pub enum Input {
    /// One user message.
    Text(String),
    /// A conversation.
    Items(Vec<Item>),
}

/// An item of the input.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a message with `role` and `content`")]
pub enum Item {
    /// A message.
    Message(Box<Message>),
    /// Something else, which is refused.
    Other(Box<Other>),
}

/// Holds an item that is not a message.
#[derive(Clone, Debug, Deserialize)]
pub struct Other {
    #[serde(rename = "type")]
    kind: String,
    call_id: Option<String>,
    name: Option<String>,
    #[serde(default)]
    arguments: Value,
    #[serde(default)]
    output: Value,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    summary: Value,
    /// Input of a tool that takes any text.
    #[serde(default)]
    input: Value,
    /// Action of a shell.
    #[serde(default)]
    action: Value,
    /// Operation of a patch.
    #[serde(default)]
    operation: Value,
    /// The tools that a search found.
    #[serde(default)]
    tools: Value,
    /// Id by which older clients name the call of a result.
    id: Option<String>,
}

/// Kinds of items that only OpenAI's servers can read, or that report work done there.
const LEFT_OUT: [&str; 6] = [
    "web_search_call",
    "file_search_call",
    "image_generation_call",
    "code_interpreter_call",
    "compaction",
    "compaction_summary",
];

/// The kinds of the items of a request that are left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct IgnoredItems(BTreeSet<&'static str>);

impl IgnoredItems {
    fn add(&mut self, kind: &str) {
        self.0.extend(LEFT_OUT.iter().find(|known| **known == kind));
    }

    /// Names them in a header of an answer, where there are any.
    pub(crate) fn named_in(&self, mut response: Response) -> Response {
        let kinds: Vec<&str> = self.0.iter().copied().collect();
        if let (false, Ok(value)) = (kinds.is_empty(), HeaderValue::from_str(&kinds.join(", "))) {
            response.headers_mut().insert("x-tokenmill-ignored-items", value);
        }
        response
    }
}

/// Describes this endpoint's conversations. Fields of an earlier answer may come back with its messages.
const WORDING: Wording = Wording {
    field: "input",
    text_kinds: &["input_text", "output_text", "text"],
    image_kind: "input_image",
    labels: &["type", "id", "status", "phase"],
};

/// Checks a conversation and brings it into the form that chat templates expect.
///
/// # Errors
/// An empty conversation or an item that is not a message of text, by path. The kinds of items that are left out go into `left_out`.
pub(crate) fn conversation(
    instructions: Option<String>,
    input: Input,
    left_out: &mut IgnoredItems,
) -> Result<Vec<TemplateMessage>, ApiError> {
    let plain = |role: &str, content| TemplateMessage {
        role: role.to_owned(),
        content,
        ..TemplateMessage::default()
    };
    let mut messages: Vec<TemplateMessage> = instructions
        .map(|text| plain("system", text))
        .into_iter()
        .collect();
    match input {
        Input::Text(text) => messages.push(plain("user", text)),
        Input::Items(items) if items.is_empty() => {
            return Err(ApiError::invalid(
                WORDING.field,
                "a conversation needs at least one message",
            ));
        }
        Input::Items(items) => {
            // Reasoning and calls are items of their own, and belong to one message of the assistant.
            let mut thought: Option<String> = None;
            for (index, item) in items.into_iter().enumerate() {
                let path = format!("{}[{index}]", WORDING.field);
                match item {
                    Item::Message(message) => {
                        let mut message = template_message(&path, *message, &WORDING)?;
                        if message.role == "assistant" {
                            message.reasoning_content = thought.take().or(message.reasoning_content);
                        }
                        messages.push(message);
                    }
                    Item::Other(other) if LEFT_OUT.contains(&other.kind.as_str()) => {
                        left_out.add(&other.kind);
                    }
                    Item::Other(other) => other.join(&path, &mut messages, &mut thought)?,
                }
            }
        }
    }
    Ok(messages)
}

impl Other {
    fn join(
        self,
        path: &str,
        messages: &mut Vec<TemplateMessage>,
        thought: &mut Option<String>,
    ) -> Result<(), ApiError> {
        match self.kind.as_str() {
            "reasoning" => {
                let text = [&self.content, &self.summary].map(texts_of);
                let text = text.into_iter().find(|text| !text.is_empty());
                *thought = text.or_else(|| thought.take());
            }
            kind if kind.ends_with("_call") => {
                let (name, arguments) = self.called(path)?;
                let call = earlier_call(path, self.call_id.as_deref(), name.as_deref(), &arguments)?;
                let is_open =
                    |message: &&mut TemplateMessage| message.role == "assistant" && thought.is_none();
                match messages.last_mut().filter(is_open) {
                    Some(message) => match &mut message.tool_calls {
                        Some(Value::Array(calls)) => calls.push(call),
                        calls => *calls = Some(Value::Array(vec![call])),
                    },
                    None => messages.push(TemplateMessage {
                        role: "assistant".to_owned(),
                        reasoning_content: thought.take(),
                        tool_calls: Some(Value::Array(vec![call])),
                        ..TemplateMessage::default()
                    }),
                }
            }
            kind if kind.ends_with("_output") => {
                let Joined {
                    text: content, parts, ..
                } = self.given(path)?;
                let is_shell = self.kind == "local_shell_call_output";
                let id = self.call_id.or(self.id.filter(|_| is_shell));
                let id = id.filter(|id| !id.is_empty()).ok_or_else(|| {
                    ApiError::invalid(format!("{path}.call_id"), "a result must name its call")
                })?;
                messages.push(TemplateMessage {
                    role: "tool".to_owned(),
                    content,
                    parts,
                    tool_call_id: Some(id),
                    ..TemplateMessage::default()
                });
            }
            kind => return Err(refuse_item(path, kind)),
        }
        Ok(())
    }

    /// The name of the tool that is called, and its arguments. Tools of other kinds than functions take what templates have no words
    /// for; their calls are written as if they were functions.
    fn called(&self, path: &str) -> Result<(Option<String>, Value), ApiError> {
        let with_own = |name: &str, value: &Value, field: &str| {
            if value.is_object() {
                return Ok((Some(name.to_owned()), value.clone()));
            }
            Err(ApiError::invalid(format!("{path}.{field}"), "expected an object"))
        };
        match self.kind.as_str() {
            "function_call" => Ok((self.name.clone(), self.arguments.clone())),
            "custom_tool_call" if self.input.is_string() => {
                Ok((self.name.clone(), json!({ "input": self.input })))
            }
            "custom_tool_call" => Err(ApiError::invalid(format!("{path}.input"), "expected a string")),
            "local_shell_call" => with_own("local_shell", &self.action, "action"),
            "shell_call" => with_own("shell", &self.action, "action"),
            "apply_patch_call" => with_own("apply_patch", &self.operation, "operation"),
            "tool_search_call" => Ok((Some("tool_search".to_owned()), self.arguments.clone())),
            kind => Err(refuse_item(path, kind)),
        }
    }

    /// Returns the texts and images of a result.
    fn given(&self, path: &str) -> Result<Joined, ApiError> {
        let text = match self.kind.as_str() {
            "function_call_output"
            | "custom_tool_call_output"
            | "local_shell_call_output"
            | "apply_patch_call_output" => match &self.output {
                Value::String(text) => Ok(text.clone()),
                Value::Array(parts) => return Ok(parts_of_result(path, parts)),
                Value::Null if self.kind == "apply_patch_call_output" => Ok(String::new()),
                _ => Err(ApiError::invalid(
                    format!("{path}.output"),
                    "expected a string or a list of texts",
                )),
            },
            // Output of each command, and how it ended.
            "shell_call_output" if self.output.is_array() => Ok(self.output.to_string()),
            "shell_call_output" => Err(ApiError::invalid(format!("{path}.output"), "expected a list")),
            "tool_search_output" if self.tools.is_array() => Ok(self.tools.to_string()),
            "tool_search_output" => Err(ApiError::invalid(format!("{path}.tools"), "expected a list")),
            kind => Err(refuse_item(path, kind)),
        };
        text.map(Joined::of_text)
    }
}

/// The texts of a list of parts, joined.
fn texts_of(parts: &Value) -> String {
    let parts = parts.as_array().into_iter().flatten();
    parts.filter_map(|part| part.get("text")?.as_str()).collect()
}

/// Reads the parts of a result: texts and images.
fn parts_of_result(path: &str, parts: &[Value]) -> Joined {
    let mut joined = Parts::default();
    for (index, part) in parts.iter().enumerate() {
        let mut fields = part.as_object().cloned().unwrap_or_default();
        if part["type"] == "input_image" && fields.get("image_url").is_some_and(|url| !url.is_null()) {
            let path = format!("{path}.output[{index}]");
            // An error about an unreadable image would block the conversation for good.
            match images::of_openai(&path, &mut fields) {
                Ok(image) => joined.push_image(image),
                Err(error) => joined.push_text(&format!("[an image left out: {error}]")),
            }
        } else {
            joined.push_text(&part_of_result(part));
        }
    }
    let (text, parts) = joined.finish();
    Joined {
        text,
        parts,
        ..Joined::default()
    }
}

/// Converts a part of a result for the model; a file becomes a note that it was left out.
fn part_of_result(part: &Value) -> String {
    if let Some(text) = part.get("text").and_then(Value::as_str) {
        return text.to_owned();
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("part");
    let kind: String = kind.chars().take(40).collect();
    format!("[{kind} left out: only texts and images of results are read]")
}

fn refuse_item(path: &str, kind: &str) -> ApiError {
    match kind {
        "message" => ApiError::invalid(format!("{path}.role"), "a message has `role` and `content`"),
        "item_reference" => ApiError::UnsupportedField {
            param: format!("{path}.type"),
            reason: NO_STATE,
        },
        _ => ApiError::UnsupportedField {
            param: format!("{path}.type"),
            reason: "only messages, calls and results of tools that the client runs, and reasoning are read",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_in_a_result_is_told_to_the_model() {
        let check = |part: Value, expected: &str| assert_eq!(part_of_result(&part), expected);
        check(json!({"type": "input_text", "text": "7"}), "7");
        check(
            json!({"type": "input_file", "file_id": "f"}),
            "[input_file left out: only texts and images of results are read]",
        );
        check(
            json!(3),
            "[part left out: only texts and images of results are read]",
        );
    }

    #[track_caller]
    fn check(input: &str, expected: Result<&[(&str, &str)], &str>) {
        let input: Input = serde_json::from_str(input).expect("an input of the right types");
        match (
            conversation(Some("be kind".to_owned()), input, &mut IgnoredItems::default()),
            expected,
        ) {
            (Ok(found), Ok(wanted)) => {
                let found: Vec<_> = found
                    .iter()
                    .map(|m| (m.role.as_str(), m.content.as_str()))
                    .collect();
                assert_eq!(found, [&[("system", "be kind")], wanted].concat());
            }
            (Err(error), Err(param)) => assert_eq!(error.param(), Some(param), "{error}"),
            (found, wanted) => panic!("{found:?}, expected {wanted:?}"),
        }
    }

    #[test]
    fn a_conversation_comes_as_text_as_messages_or_as_earlier_answers() {
        check(r#""Hi""#, Ok(&[("user", "Hi")]));
        check(
            r#"[{"role":"user","content":[{"type":"input_text","text":"Hi"}]},
                {"type":"message","id":"msg_1","status":"completed","role":"assistant",
                 "content":[{"type":"output_text","text":"Ho","annotations":[],"logprobs":[{"token":"Ho"}]}]},
                {"type":"message","role":"user","content":"Well?"}]"#,
            Ok(&[("user", "Hi"), ("assistant", "Ho"), ("user", "Well?")]),
        );
    }

    #[test]
    fn reasoning_calls_and_results_are_items() {
        let input = r#"[{"role":"user","content":"a"},
            {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
            {"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{\"x\":1}","status":"completed"},
            {"type":"function_call","call_id":"d","name":"f","arguments":"{}"},
            {"type":"function_call_output","call_id":"c","output":"o"}]"#;
        let input: Input = serde_json::from_str(input).expect("an input");
        let messages = conversation(None, input, &mut IgnoredItems::default()).expect("it can be read");
        assert_eq!(messages.len(), 3);
        assert_eq!(messages[1].reasoning_content.as_deref(), Some("hm"));
        let calls = messages[1]
            .tool_calls
            .as_ref()
            .and_then(Value::as_array)
            .expect("calls");
        assert_eq!(
            (calls.len(), &calls[0]["function"]["arguments"]["x"]),
            (2, &Value::from(1))
        );
        assert_eq!(
            (messages[2].role.as_str(), messages[2].content.as_str()),
            ("tool", "o")
        );
    }

    #[test]
    fn what_is_no_message_of_text_is_refused_by_path() {
        check("[]", Err("input"));
        check(r#"[{"type":"item_reference","id":"x"}]"#, Err("input[0].type"));
        check(
            r#"[{"role":"user","content":"a"},{"type":"function_call_output","output":"o"}]"#,
            Err("input[1].call_id"),
        );
        check(
            r#"[{"type":"computer_call","call_id":"c"}]"#,
            Err("input[0].type"),
        );
        check(
            r#"[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]"#,
            Err("input[0].content[0].image_url"),
        );
        check(r#"[{"type":"message","content":"a"}]"#, Err("input[0].role"));
        check(
            r#"[{"role":"user","content":"a","mood":"good"}]"#,
            Err("input[0].mood"),
        );
    }

    #[test]
    fn what_agents_did_with_other_tools_is_read() {
        let input = r#"[{"role":"user","content":"a"},
            {"type":"custom_tool_call","call_id":"c","name":"apply_patch","input":"*** Begin"},
            {"type":"custom_tool_call_output","call_id":"c","output":"done"},
            {"type":"web_search_call","id":"ws","status":"completed","action":{"type":"search","query":"q"}},
            {"type":"local_shell_call","call_id":"d","status":"completed","action":{"type":"exec","command":["ls"]}},
            {"type":"local_shell_call_output","id":"d","output":"a.txt"},
            {"type":"tool_search_call","call_id":"e","execution":"client","arguments":{"query":"q"}},
            {"type":"tool_search_output","call_id":"e","status":"completed","execution":"client","tools":[{"name":"f"}]},
            {"type":"compaction","encrypted_content":"x"}]"#;
        let input: Input = serde_json::from_str(input).expect("an input");
        let mut left_out = IgnoredItems::default();
        let messages = conversation(None, input, &mut left_out).expect("it can be read");
        let found: Vec<_> = messages
            .iter()
            .map(|m| (m.role.as_str(), m.content.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("user", "a"),
                ("assistant", ""),
                ("tool", "done"),
                ("assistant", ""),
                ("tool", "a.txt"),
                ("assistant", ""),
                ("tool", "[{\"name\":\"f\"}]"),
            ]
        );
        let call = |index: usize| messages[index].tool_calls.as_ref().expect("a call")[0]["function"].clone();
        assert_eq!(
            call(1),
            json!({"name": "apply_patch", "arguments": {"input": "*** Begin"}})
        );
        assert_eq!(call(3)["arguments"]["command"], json!(["ls"]));
        assert_eq!(
            call(5),
            json!({"name": "tool_search", "arguments": {"query": "q"}})
        );
        assert_eq!(messages[4].tool_call_id.as_deref(), Some("d"));
        assert_eq!(
            left_out.0.into_iter().collect::<Vec<_>>(),
            ["compaction", "web_search_call"]
        );
        for (item, field) in [
            (
                r#"{"type":"custom_tool_call","call_id":"c","name":"f","input":{}}"#,
                "input",
            ),
            (
                r#"{"type":"local_shell_call","call_id":"c","action":"ls"}"#,
                "action",
            ),
            (r#"{"type":"mcp_call","id":"c"}"#, "type"),
            (r#"{"type":"tool_search_output","call_id":"c"}"#, "tools"),
            (r#"{"type":"custom_tool_call_output","output":"o"}"#, "call_id"),
        ] {
            check(&format!("[{item}]"), Err(&format!("input[0].{field}")));
        }
    }
}

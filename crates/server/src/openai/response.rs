//! `POST /v1/responses`: OpenAI's newer form of a chat request, as agents send it.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    StreamOptions, TokenLimit,
    chat::{Message, TemplateMessage, Wording, template_message},
};
use crate::{
    ApiError,
    fields::{Field, label, only, refused, yes},
    tools::{Choice, IgnoredTools, Tools, earlier_call, set_effort},
};

const NO_STATE: &str = "conversations are not stored; send the items in `input`, or `previous_response_id`";

/// The endpoint's own fields; of sampling it takes `temperature` and `top_p` officially, and the extensions.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "input",
        "text, or a list of messages, calls, results and reasoning, also those of earlier answers; other items are refused",
    ),
    yes("instructions", "a system message before the input"),
    yes("max_output_tokens", "default and -1: the rest of the context"),
    yes("stream", ""),
    yes("stream_options", ""),
    yes("top_logprobs", "at most 20"),
    yes(
        "include",
        "`message.output_text.logprobs`; `reasoning.encrypted_content`, which nothing here has; anything else is refused",
    ),
    label("user"),
    label("metadata"),
    label("safety_identifier"),
    label("prompt_cache_key"),
    label("client_metadata"),
    label("prompt_cache_options"),
    label("prompt_cache_retention"),
    label("service_tier"),
    yes(
        "parallel_tool_calls",
        "default true; with false an answer ends after its first call",
    ),
    label("max_tool_calls"),
    yes(
        "text",
        "`format`: `text`, `json_object`, or `json_schema` with a schema; every schema is enforced, with `strict` or without",
    ),
    yes(
        "tools",
        "functions; tools of other kinds are left out, and the header `x-tokenmill-ignored-tools` names their kinds",
    ),
    yes(
        "tool_choice",
        "`auto`, `none`, `required`, a function by its name, or `allowed_tools`; calls obey their schemas",
    ),
    yes(
        "reasoning",
        "`effort`, as `reasoning_effort` of `/v1/chat/completions`; `max_tokens`, as `thinking_budget` there; reasoning is given whole, so `summary` changes nothing",
    ),
    refused("background", "answers are not kept for later"),
    refused("conversation", NO_STATE),
    yes("previous_response_id", "an answer that is still stored"),
    yes(
        "store",
        "default true; the newest answers are kept, up to 32 MiB, for `previous_response_id`",
    ),
    refused("prompt", "stored prompts do not exist here"),
    refused("access_programs", "there are no access programs"),
    refused("context_management", "send the conversation as it should be read"),
    refused("image", "only text goes in and comes out"),
    refused("moderation", "nothing is moderated"),
    only(
        "truncation",
        &["\"disabled\""],
        "a prompt that is too long is refused, never cut",
    ),
];

/// A responses request.
#[derive(Clone, Debug, Deserialize)]
pub struct ResponseRequest {
    /// Model name.
    pub model: Option<String>,
    /// What to answer.
    pub input: Input,
    /// A system message.
    pub instructions: Option<String>,
    /// Most tokens to generate.
    pub max_output_tokens: Option<TokenLimit>,
    /// Whether the answer is streamed.
    #[serde(default)]
    pub stream: bool,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// Alternatives per token.
    pub top_logprobs: Option<u32>,
    /// Extra output.
    #[serde(default)]
    pub include: Vec<String>,
    #[serde(default)]
    tools: Vec<Value>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    /// The answer that this one follows.
    pub(crate) previous_response_id: Option<String>,
    /// Whether the answer can be followed by another.
    pub(crate) store: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
struct Reasoning {
    effort: Option<String>,
    max_tokens: Option<u32>,
}

impl ResponseRequest {
    /// The functions that the request offers, and the kinds of tools that are left out.
    ///
    /// # Errors
    /// What is wrong with them or with the choice, by path.
    pub(crate) fn tools(&mut self) -> Result<(Tools, IgnoredTools), ApiError> {
        let choice = Choice::of_openai(self.tool_choice.as_ref())?;
        let mut functions = Vec::new();
        let mut ignored = IgnoredTools::default();
        for (index, tool) in std::mem::take(&mut self.tools).into_iter().enumerate() {
            let path = format!("tools[{index}]");
            match tool.get("type").and_then(Value::as_str) {
                Some("function") => functions.push((path, tool)),
                Some(kind) => ignored.add(kind, &tool),
                None => {
                    return Err(ApiError::invalid(
                        format!("{path}.type"),
                        "this field is required",
                    ));
                }
            }
        }
        let is_parallel = self.parallel_tool_calls.unwrap_or(true);
        let tools = Tools::new(functions, &choice, is_parallel, &ignored)?;
        Ok((tools, ignored))
    }

    /// Tokens that reasoning may take, if the request says so.
    pub(crate) fn thinking_budget(&self) -> Option<u32> {
        self.reasoning.as_ref()?.max_tokens
    }

    /// The variables for the chat template.
    pub(crate) fn variables(&self) -> Map<String, Value> {
        let mut variables = Map::new();
        if let Some(effort) = self
            .reasoning
            .as_ref()
            .and_then(|reasoning| reasoning.effort.as_deref())
        {
            set_effort(&mut variables, effort);
        }
        variables
    }
}

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

/// An item that is no message.
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
}

/// How this endpoint writes conversations. What an earlier answer carried may come back with its messages.
const WORDING: Wording = Wording {
    field: "input",
    text_kinds: &["input_text", "output_text", "text"],
    image_kind: "input_image",
    labels: &["type", "id", "status", "phase"],
};

/// Checks a conversation and brings it into the form that chat templates expect.
///
/// # Errors
/// An empty conversation or an item that is not a message of text, by path.
pub(crate) fn conversation(
    instructions: Option<String>,
    input: Input,
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
                            message.reasoning_content = thought.take();
                        }
                        messages.push(message);
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
            "function_call" => {
                let call = earlier_call(
                    path,
                    self.call_id.as_deref(),
                    self.name.as_deref(),
                    &self.arguments,
                )?;
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
            "function_call_output" => {
                let id = (self.call_id.filter(|id| !id.is_empty())).ok_or_else(|| {
                    ApiError::invalid(format!("{path}.call_id"), "a result names the call that it is of")
                })?;
                let content = match self.output {
                    Value::String(text) => text,
                    Value::Array(_) => texts_of(&self.output),
                    _ => {
                        return Err(ApiError::invalid(
                            format!("{path}.output"),
                            "expected a string or a list of texts",
                        ));
                    }
                };
                messages.push(TemplateMessage {
                    role: "tool".to_owned(),
                    content,
                    tool_call_id: Some(id),
                    ..TemplateMessage::default()
                });
            }
            kind => return Err(refuse_item(path, kind)),
        }
        Ok(())
    }
}

/// The texts of a list of parts, joined.
fn texts_of(parts: &Value) -> String {
    let parts = parts.as_array().into_iter().flatten();
    parts.filter_map(|part| part.get("text")?.as_str()).collect()
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
            reason: "only messages, functions' calls and results, and reasoning are read",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, expected: Result<&[(&str, &str)], &str>) {
        let input: Input = serde_json::from_str(input).expect("an input of the right types");
        match (conversation(Some("be kind".to_owned()), input), expected) {
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
        let messages = conversation(None, input).expect("it can be read");
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
            r#"[{"type":"function_call","call_id":"c","name":"f","arguments":"[]"}]"#,
            Err("input[0].arguments"),
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
}

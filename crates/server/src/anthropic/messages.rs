//! `POST /v1/messages`: a conversation in, the next message out, in Anthropic's words.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::tool_kinds::{RunBy, run_by};
use crate::{
    ApiError,
    fields::{Field, label, refuse_others, refused, yes},
    images::{self, Parts},
    openai::chat::{TemplateMessage, Turn},
    tools::{Choice, IgnoredTools, Tools, earlier_call, set_thinking},
};

const TEXT_ONLY: &str = "text and images go in, and text comes out";

/// The endpoint's fields. `top_k`, `top_p` and `temperature` are read with the other sampling fields.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "messages",
        "roles `user` and `assistant`; content as text or blocks `text`, `image` (`base64`), `thinking`, `tool_use` and `tool_result`; the answer \
         continues a last message of the assistant",
    ),
    yes("max_tokens", "required, except by `count_tokens`"),
    yes("system", "text or text blocks"),
    yes("stop_sequences", "up to 16"),
    yes("stream", ""),
    yes("temperature", "default 1"),
    yes("top_k", ""),
    yes("top_p", ""),
    label("metadata"),
    label("cache_control"),
    label("service_tier"),
    yes(
        "tools",
        "tools with an `input_schema`; kinds that Anthropic's servers run (`web_search`, `web_fetch`, `code_execution`, `tool_search_tool_regex`, \
         `tool_search_tool_bm25`, `mcp_toolset`, `advisor`) are left out, and the header `x-tokenmill-ignored-tools` names them; kinds that the client runs \
         by Anthropic's descriptions (`bash`, `text_editor`, `computer`, `memory`), and unknown ones, are refused",
    ),
    yes(
        "tool_choice",
        "`auto`, `none`, `any` and `tool` with a `name`, with `disable_parallel_tool_use`; calls obey their schemas",
    ),
    yes(
        "thinking",
        "`enabled`, `adaptive` or `disabled`, for models whose template can switch it; after `budget_tokens` the model's own end of its thoughts is written",
    ),
    yes(
        "output_config",
        "`format`: `json_schema` with a `schema`, which is enforced; `effort` is refused",
    ),
    yes("output_format", "the older name of `output_config.format`"),
    refused("container", "there is no code execution"),
    refused("context_management", "send the conversation as it should be read"),
    refused("mcp_servers", "tools are called by the client"),
    refused(
        "diagnostics",
        "why no more came from the cache stands in the server's log",
    ),
    refused("speed", "there is one speed"),
    refused("inference_geo", "the model runs where this server runs"),
];

/// A messages request.
#[derive(Clone, Debug, Deserialize)]
pub struct MessagesRequest {
    /// Model name.
    pub model: Option<String>,
    /// The conversation.
    pub messages: Vec<Message>,
    max_tokens: Option<u32>,
    /// The system message.
    pub system: Option<Content>,
    #[serde(default)]
    tools: Vec<Value>,
    tool_choice: Option<ToolChoice>,
    thinking: Option<Thinking>,
    /// Strings that end the answer.
    #[serde(default)]
    pub stop_sequences: Vec<String>,
    /// Whether the answer is streamed.
    #[serde(default)]
    pub stream: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct ToolChoice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    #[serde(default)]
    disable_parallel_tool_use: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<u32>,
}

impl MessagesRequest {
    /// Tokens that thoughts may take.
    ///
    /// # Errors
    /// A budget for thoughts that are not asked for.
    pub(crate) fn thinking_budget(&self) -> Result<Option<u32>, ApiError> {
        match &self.thinking {
            Some(thinking) if thinking.budget_tokens.is_some() && thinking.kind == "disabled" => {
                Err(ApiError::invalid(
                    "thinking.budget_tokens",
                    "contradicts `thinking.type`, which is `disabled`",
                ))
            }
            Some(thinking) => Ok(thinking.budget_tokens),
            None => Ok(None),
        }
    }

    /// The tools that the request offers, and the kinds of those that are left out.
    ///
    /// # Errors
    /// What is wrong with them or with the choice, by path.
    pub(crate) fn tools(&mut self) -> Result<(Tools, IgnoredTools), ApiError> {
        let choice = match self
            .tool_choice
            .as_ref()
            .map(|choice| (choice.kind.as_str(), &choice.name))
        {
            None | Some(("auto", _)) => Choice::Auto,
            Some(("none", _)) => Choice::None,
            Some(("any", _)) => Choice::Required,
            Some(("tool", Some(name))) => Choice::Named(name.clone()),
            Some(_) => {
                let reason = "expected the type `auto`, `any`, `none`, or `tool` with a name";
                return Err(ApiError::invalid("tool_choice", reason));
            }
        };
        let mut tools = Vec::new();
        let mut ignored = IgnoredTools::default();
        for (index, tool) in std::mem::take(&mut self.tools).into_iter().enumerate() {
            let path = format!("tools[{index}]");
            match tool.get("type") {
                None | Some(Value::Null) => tools.push((path, tool)),
                Some(Value::String(kind)) => match run_by(kind, &path)? {
                    RunBy::Description => tools.push((path, tool)),
                    RunBy::OtherServers => ignored.add(kind, &tool),
                },
                Some(_) => return Err(ApiError::invalid(format!("{path}.type"), "expected a string")),
            }
        }
        let is_parallel = !(self.tool_choice.as_ref()).is_some_and(|choice| choice.disable_parallel_tool_use);
        Ok((Tools::new(tools, &choice, is_parallel, &ignored)?, ignored))
    }

    /// The variables for the chat template.
    ///
    /// # Errors
    /// An unknown kind of thinking.
    pub(crate) fn variables(&self) -> Result<Map<String, Value>, ApiError> {
        let mut variables = Map::new();
        match self.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
            None | Some("adaptive") => {}
            Some("enabled") => set_thinking(&mut variables, true),
            Some("disabled") => set_thinking(&mut variables, false),
            Some(_) => {
                let reason = "expected `enabled`, `adaptive` or `disabled`";
                return Err(ApiError::invalid("thinking.type", reason));
            }
        }
        Ok(variables)
    }

    /// How the prompt ends: a last message of the assistant is what the answer begins with.
    ///
    /// # Errors
    /// Such a message with space at its end, which models continue badly; the official API refuses it too.
    pub fn turn(&self) -> Result<Turn, ApiError> {
        let Some(last) = self.messages.last().filter(|last| last.role == Role::Assistant) else {
            return Ok(Turn::Open);
        };
        if last
            .content
            .text_end()
            .is_some_and(|text| text.ends_with(char::is_whitespace))
        {
            return Err(ApiError::invalid(
                format!("messages[{}].content", self.messages.len() - 1),
                "the beginning of an answer cannot end with space",
            ));
        }
        Ok(Turn::Unfinished)
    }

    /// Most tokens to generate.
    ///
    /// # Errors
    /// The field is missing or 0.
    pub fn max_tokens(&self) -> Result<u32, ApiError> {
        match self.max_tokens {
            None => Err(ApiError::invalid("max_tokens", "this field is required")),
            Some(0) => Err(ApiError::invalid("max_tokens", "at least 1")),
            Some(n) => Ok(n),
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, Deserialize)]
pub struct Message {
    role: Role,
    content: Content,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
}

/// Text or content blocks.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of content blocks")]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Blocks of text, thinking, calls and results.
    Blocks(Vec<Block>),
}

impl Content {
    /// The last text.
    fn text_end(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Blocks(blocks) => blocks.last()?.text.as_deref(),
        }
    }
}

/// Fields of a text block that only describe it.
const BLOCK_LABELS: &[&str] = &["cache_control", "signature", "caller"];

/// A content block. `cache_control` may accompany the text: prefixes are always cached.
#[derive(Clone, Debug, Deserialize)]
pub struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    /// Of a call.
    id: Option<String>,
    name: Option<String>,
    #[serde(default)]
    input: Value,
    /// Of a result.
    tool_use_id: Option<String>,
    content: Option<Box<Content>>,
    #[serde(default)]
    is_error: bool,
    /// Of an image.
    source: Option<Value>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Checks a conversation and brings it into the form that chat templates expect.
///
/// # Errors
/// An empty conversation, or a block that cannot be read, by path.
pub fn template_messages(
    system: Option<Content>,
    messages: Vec<Message>,
) -> Result<Vec<TemplateMessage>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "a conversation needs at least one message",
        ));
    }
    let mut converted = Vec::with_capacity(messages.len() + 1);
    if let Some(system) = system {
        let content = join_texts("system", system)?;
        converted.push(plain("system", content));
    }
    for (index, message) in messages.into_iter().enumerate() {
        let path = format!("messages[{index}]");
        refuse_others(&path, &message.others, &[])?;
        let path = format!("{path}.content");
        match (message.content, message.role) {
            (Content::Text(text), Role::User) => converted.push(plain("user", text)),
            (Content::Text(text), Role::Assistant) => converted.push(plain("assistant", text)),
            (Content::Blocks(blocks), Role::User) => user_blocks(&path, blocks, &mut converted)?,
            (Content::Blocks(blocks), Role::Assistant) => converted.push(assistant_blocks(&path, blocks)?),
        }
    }
    Ok(converted)
}

fn plain(role: &str, content: String) -> TemplateMessage {
    TemplateMessage {
        role: role.to_owned(),
        content,
        ..TemplateMessage::default()
    }
}

/// Results become messages of their own, before what the user says.
fn user_blocks(path: &str, blocks: Vec<Block>, converted: &mut Vec<TemplateMessage>) -> Result<(), ApiError> {
    let mut said = None;
    for (index, block) in blocks.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        refuse_others(&path, &block.others, BLOCK_LABELS)?;
        match block.kind.as_str() {
            "text" => said
                .get_or_insert_with(Parts::default)
                .push_text(&text_of(&path, block.text)?),
            "image" => said
                .get_or_insert_with(Parts::default)
                .push_image(images::of_anthropic(&path, block.source.as_ref())?),
            "tool_result" => {
                let id = block.tool_use_id.ok_or_else(|| {
                    ApiError::invalid(format!("{path}.tool_use_id"), "this field is required")
                })?;
                let content = block
                    .content
                    .map(|content| join_texts(&format!("{path}.content"), *content));
                let content = content.transpose()?.unwrap_or_default();
                converted.push(TemplateMessage {
                    tool_call_id: Some(id),
                    ..plain(
                        "tool",
                        if block.is_error {
                            format!("Error: {content}")
                        } else {
                            content
                        },
                    )
                });
            }
            _ => return Err(refuse_kind(&path)),
        }
    }
    converted.extend(said.map(|said| {
        let (text, parts) = said.finish();
        TemplateMessage {
            parts,
            ..plain("user", text)
        }
    }));
    Ok(())
}

fn assistant_blocks(path: &str, blocks: Vec<Block>) -> Result<TemplateMessage, ApiError> {
    let mut message = plain("assistant", String::new());
    let mut calls = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        refuse_others(&path, &block.others, BLOCK_LABELS)?;
        match block.kind.as_str() {
            "text" => message.content.push_str(&text_of(&path, block.text)?),
            "thinking" => {
                let thinking = block.thinking.unwrap_or_default();
                message
                    .reasoning_content
                    .get_or_insert_with(String::new)
                    .push_str(&thinking);
            }
            "redacted_thinking" => {}
            "tool_use" => {
                let input = earlier_call(&path, block.id.as_deref(), block.name.as_deref(), &block.input);
                calls.push(input.map_err(|error| match error.param() {
                    Some(param) if param.ends_with(".arguments") => {
                        ApiError::invalid(format!("{path}.input"), "expected a JSON object")
                    }
                    _ => error,
                })?);
            }
            _ => return Err(refuse_kind(&path)),
        }
    }
    message.tool_calls = (!calls.is_empty()).then_some(Value::Array(calls));
    Ok(message)
}

fn text_of(path: &str, text: Option<String>) -> Result<String, ApiError> {
    text.ok_or_else(|| ApiError::invalid(format!("{path}.text"), "this field is required"))
}

fn refuse_kind(path: &str) -> ApiError {
    ApiError::UnsupportedField {
        param: format!("{path}.type"),
        reason: TEXT_ONLY,
    }
}

fn join_texts(path: &str, content: Content) -> Result<String, ApiError> {
    let blocks = match content {
        Content::Text(text) => return Ok(text),
        Content::Blocks(blocks) => blocks,
    };
    let mut joined = String::new();
    for (index, block) in blocks.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        if block.kind != "text" {
            return Err(refuse_kind(&path));
        }
        refuse_others(&path, &block.others, BLOCK_LABELS)?;
        joined.push_str(&text_of(&path, block.text)?);
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(request: &str, expected: Result<&[(&str, &str)], &str>) {
        let request: MessagesRequest = serde_json::from_str(request).expect("a request of the right types");
        match (template_messages(request.system, request.messages), expected) {
            (Ok(found), Ok(wanted)) => {
                let found: Vec<_> = found
                    .iter()
                    .map(|m| (m.role.as_str(), m.content.as_str()))
                    .collect();
                assert_eq!(found, wanted);
            }
            (Err(error), Err(param)) => assert_eq!(error.param(), Some(param), "{error}"),
            (found, wanted) => panic!("{found:?}, expected {wanted:?}"),
        }
    }

    #[test]
    fn system_and_messages_reach_the_template() {
        check(
            r#"{"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],
                "messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"b"}]}]}"#,
            Ok(&[("system", "be brief"), ("user", "a"), ("assistant", "b")]),
        );
    }

    #[test]
    fn calls_results_and_thoughts_reach_the_template() {
        let request = r#"{"messages":[
            {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"a"},
                {"type":"tool_use","id":"t","name":"f","input":{"x":1}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":[{"type":"text","text":"no"}]},
                {"type":"text","text":"b"}]}]}"#;
        let request: MessagesRequest = serde_json::from_str(request).expect("a request");
        let messages = template_messages(None, request.messages).expect("it can be read");
        assert_eq!(messages[0].reasoning_content.as_deref(), Some("hm"));
        let calls = messages[0].tool_calls.as_ref().expect("a call");
        assert_eq!(calls[0]["function"]["arguments"]["x"], 1);
        let found: Vec<_> = messages
            .iter()
            .map(|m| (m.role.as_str(), m.content.as_str()))
            .collect();
        assert_eq!(found, [("assistant", "a"), ("tool", "Error: no"), ("user", "b")]);
        assert_eq!(messages[1].tool_call_id.as_deref(), Some("t"));
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_path() {
        check(r#"{"messages":[]}"#, Err("messages"));
        check(
            r#"{"messages":[{"role":"user","content":[{"type":"image"}]}]}"#,
            Err("messages[0].content[0].source"),
        );
        check(
            r#"{"messages":[{"role":"user","content":[{"type":"tool_result"}]}]}"#,
            Err("messages[0].content[0].tool_use_id"),
        );
        check(
            r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":[1]}]}]}"#,
            Err("messages[0].content[0].input"),
        );
        check(
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a","citations":[{}]}]}]}"#,
            Err("messages[0].content[0].citations"),
        );
        check(
            r#"{"messages":[{"role":"user","content":"a","name":"Ann"}]}"#,
            Err("messages[0].name"),
        );
    }
}

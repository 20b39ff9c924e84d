//! The messages of `/v1/messages`: content blocks, and their conversion for chat templates.
//!
//! Invariant: a block is read, or refused by its path; if only Anthropic's servers can read it, the table of
//! fields says that it is left out.

use std::mem;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    ApiError,
    dialects::openai::chat::TemplateMessage,
    requests::{
        earlier_calls::earlier_call,
        fields::refuse_others,
        images::{self, Parts, push_line},
    },
};

const TEXT_ONLY: &str = "text and images go in, and text comes out";

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
    /// System messages after the start of a conversation.
    System,
}

/// Start of a text for Anthropic's billing. It differs between conversations, and would defeat the prefix cache.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// Text or content blocks.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of content blocks")]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Blocks of text, thinking, calls and results.
    Blocks(Vec<Block>),
}

impl Message {
    /// Whether the model wrote it.
    pub(super) fn is_of_assistant(&self) -> bool {
        self.role == Role::Assistant
    }

    /// The text that it ends with, if it does.
    pub(super) fn text_end(&self) -> Option<&str> {
        self.content.text_end()
    }
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

/// A content block; a field is of the blocks that its comment names. `cache_control` may accompany the text: prefixes are always cached.
#[derive(Clone, Debug, Deserialize)]
pub struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    /// Id of a call.
    id: Option<String>,
    name: Option<String>,
    #[serde(default)]
    input: Value,
    /// Call of a result.
    tool_use_id: Option<String>,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    is_error: bool,
    /// Source of an image or a document.
    source: Option<Value>,
    /// Title of a document.
    title: Option<String>,
    context: Option<String>,
    /// Tool of a reference.
    tool_name: Option<String>,
    /// Encrypted reasoning, which only Anthropic's servers can read.
    data: Option<String>,
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
        let system = without_billing(system);
        let content = join_texts("system", system, BlockUse::Text)?;
        converted.push(plain("system", content.text));
    }
    for (index, message) in messages.into_iter().enumerate() {
        let path = format!("messages[{index}]");
        refuse_others(&path, &message.others, &[])?;
        let path = format!("{path}.content");
        match (message.content, message.role) {
            (Content::Text(text), Role::User) => converted.push(plain("user", text)),
            (Content::Text(text), Role::Assistant) => converted.push(plain("assistant", text)),
            (content, Role::System) => {
                let said = join_texts(&path, without_billing(content), BlockUse::Text)?;
                converted.push(plain("system", said.text));
            }
            (Content::Blocks(blocks), Role::User) => user_blocks(&path, blocks, &mut converted)?,
            (Content::Blocks(blocks), Role::Assistant) => assistant_blocks(&path, blocks, &mut converted)?,
        }
    }
    Ok(converted)
}

/// Removes the billing text from system messages.
fn without_billing(content: Content) -> Content {
    let is_billing = |text: &str| text.trim_start().starts_with(BILLING_HEADER);
    match content {
        Content::Text(text) if is_billing(&text) => Content::Text(String::new()),
        Content::Text(text) => Content::Text(text),
        Content::Blocks(mut blocks) => {
            blocks.retain(|block| !block.text.as_deref().is_some_and(is_billing));
            Content::Blocks(blocks)
        }
    }
}

fn plain(role: &str, content: String) -> TemplateMessage {
    TemplateMessage {
        role: role.to_owned(),
        content,
        ..TemplateMessage::default()
    }
}

/// Results become messages of their own, before the user's text.
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
            "document" => said
                .get_or_insert_with(Parts::default)
                .push_text(&document_text(&path, &block)?),
            "tool_result" => converted.push(result(&path, block)?),
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

/// Reads a result of a client's tool.
fn result(path: &str, block: Block) -> Result<TemplateMessage, ApiError> {
    let id = block
        .tool_use_id
        .ok_or_else(|| ApiError::invalid(format!("{path}.tool_use_id"), "this field is required"))?;
    let path = format!("{path}.content");
    let mut said = Parts::default();
    if !block.content.is_null() {
        let content = serde_path_to_error::deserialize(block.content)
            .map_err(|error| ApiError::invalid(&path, error.into_inner().to_string()))?;
        join_into(&mut said, &path, content, BlockUse::Result)?;
    }
    if block.is_error {
        said.begin_with("Error: ");
    }
    let (text, parts) = said.finish();
    Ok(TemplateMessage {
        tool_call_id: Some(id),
        parts,
        ..plain("tool", text)
    })
}

/// The blocks of an answer. One that called a tool of the server in its midst becomes several messages: the call ends one, the result
/// follows, and the next begins.
fn assistant_blocks(
    path: &str,
    blocks: Vec<Block>,
    converted: &mut Vec<TemplateMessage>,
) -> Result<(), ApiError> {
    let mut message = plain("assistant", String::new());
    let mut calls = Vec::new();
    let mut n_results = 0;
    for (index, block) in blocks.into_iter().enumerate() {
        // Unknown fields of an answer are ignored, because other servers may have written them.
        let path = format!("{path}[{index}]");
        match block.kind.as_str() {
            "text" => push_line(&mut message.content, &text_of(&path, block.text)?),
            "thinking" => {
                let thinking = block.thinking.unwrap_or_default();
                message
                    .reasoning_content
                    .get_or_insert_with(String::new)
                    .push_str(&thinking);
            }
            "redacted_thinking" if block.data.is_some() => {}
            "redacted_thinking" => {
                return Err(ApiError::invalid(
                    format!("{path}.data"),
                    "this field is required",
                ));
            }
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                let (id, name) = (block.id.as_deref(), block.name.as_deref());
                calls.push(earlier_call(&path, id, name, &block.input)?);
            }
            kind if kind.ends_with("_tool_result") => {
                let id = block.tool_use_id.ok_or_else(|| {
                    ApiError::invalid(format!("{path}.tool_use_id"), "this field is required")
                })?;
                message.tool_calls = (!calls.is_empty()).then(|| Value::Array(mem::take(&mut calls)));
                // Results that follow each other belong to one turn.
                if says_something(&message) {
                    converted.push(mem::replace(&mut message, plain("assistant", String::new())));
                }
                converted.push(TemplateMessage {
                    tool_call_id: Some(id),
                    ..plain("tool", readable(block.content))
                });
                n_results += 1;
            }
            _ => return Err(refuse_kind(&path)),
        }
    }
    message.tool_calls = (!calls.is_empty()).then_some(Value::Array(calls));
    if n_results == 0 || says_something(&message) {
        converted.push(message);
    }
    Ok(())
}

fn says_something(message: &TemplateMessage) -> bool {
    !message.content.is_empty() || message.reasoning_content.is_some() || message.tool_calls.is_some()
}

/// Reads a result of an Anthropic server tool, without parts that only their servers can read.
fn readable(content: Value) -> String {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(object) => {
                object.retain(|name, _| !name.starts_with("encrypted_"));
                object.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    match content {
        Value::Null => String::new(),
        Value::String(text) => text,
        mut content => {
            strip(&mut content);
            content.to_string()
        }
    }
}

/// A document of text, with its title and its context.
fn document_text(path: &str, block: &Block) -> Result<String, ApiError> {
    let source = block.source.as_ref().unwrap_or(&Value::Null);
    let text = match source["type"].as_str() {
        Some("text") => source["data"].as_str().map(str::to_owned).ok_or_else(|| {
            ApiError::invalid(format!("{path}.source.data"), "expected the document's text")
        })?,
        Some("content") => {
            let path = format!("{path}.source.content");
            let content = serde_path_to_error::deserialize(&source["content"])
                .map_err(|error| ApiError::invalid(&path, error.into_inner().to_string()))?;
            join_texts(&path, content, BlockUse::Text)?.text
        }
        _ => {
            return Err(ApiError::UnsupportedField {
                param: format!("{path}.source.type"),
                reason: "a document is read as text; its source is of type `text`, or `content` with text blocks",
            });
        }
    };
    let before = [&block.title, &block.context].into_iter().flatten();
    let parts: Vec<&str> = before.map(String::as_str).chain([text.as_str()]).collect();
    Ok(parts.join("\n"))
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

/// Where a list of blocks stands.
#[derive(Clone, Copy, PartialEq)]
enum BlockUse {
    /// Text only.
    Text,
    /// The result of a tool, which may hold documents and references to tools.
    Result,
}

fn join_texts(path: &str, content: Content, place: BlockUse) -> Result<Parts, ApiError> {
    let mut joined = Parts::default();
    join_into(&mut joined, path, content, place)?;
    Ok(joined)
}

fn join_into(joined: &mut Parts, path: &str, content: Content, place: BlockUse) -> Result<(), ApiError> {
    let blocks = match content {
        Content::Text(text) => {
            joined.push_text(&text);
            return Ok(());
        }
        Content::Blocks(blocks) => blocks,
    };
    for (index, block) in blocks.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        refuse_others(&path, &block.others, BLOCK_LABELS)?;
        match (block.kind.as_str(), place) {
            ("text", _) => joined.push_text(&text_of(&path, block.text)?),
            ("document", BlockUse::Result) => joined.push_text(&document_text(&path, &block)?),
            ("tool_reference", BlockUse::Result) => {
                let name = block.tool_name.ok_or_else(|| {
                    ApiError::invalid(format!("{path}.tool_name"), "this field is required")
                })?;
                joined.push_text(&format!("The tool `{name}` can be called."));
            }
            // An error about an unreadable image would block the conversation for good.
            ("image", BlockUse::Result) => match images::of_anthropic(&path, block.source.as_ref()) {
                Ok(image) => joined.push_image(image),
                Err(error) => joined.push_text(&format!("[an image left out: {error}]")),
            },
            (kind, BlockUse::Result) => {
                joined.push_text(&format!(
                    "[{} left out]",
                    crate::errors::api_error::shortened(kind)
                ));
            }
            _ => return Err(refuse_kind(&path)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Request {
        system: Option<Content>,
        messages: Vec<Message>,
    }

    #[track_caller]
    fn check(request: &str, expected: Result<&[(&str, &str)], &str>) {
        let request: Request = serde_json::from_str(request).expect("a request of the right types");
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
    fn texts_of_a_message_begin_on_lines_of_their_own() {
        let two = r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
        let result = format!(r#"[{{"type":"tool_result","tool_use_id":"t","content":{two}}}]"#);
        check(
            &format!(
                r#"{{"system":{two},"messages":[{{"role":"user","content":{two}}},{{"role":"assistant","content":{two}}},
                    {{"role":"user","content":{result}}}]}}"#
            ),
            Ok(&[
                ("system", "a\nb"),
                ("user", "a\nb"),
                ("assistant", "a\nb"),
                ("tool", "a\nb"),
            ]),
        );
    }

    #[test]
    fn calls_results_and_thoughts_reach_the_template() {
        let request = r#"{"messages":[
            {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"a"},
                {"type":"tool_use","id":"t","name":"f","input":{"x":1}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":[{"type":"text","text":"no"}]},
                {"type":"text","text":"b"}]}]}"#;
        let request: Request = serde_json::from_str(request).expect("a request");
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
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a","citations":[{}]}]}]}"#,
            Err("messages[0].content[0].citations"),
        );
        check(
            r#"{"messages":[{"role":"user","content":"a","name":"Ann"}]}"#,
            Err("messages[0].name"),
        );
    }

    #[test]
    fn what_anthropics_servers_did_is_read_as_calls_and_results() {
        let request = r#"{"messages":[
            {"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"},
                {"type":"server_tool_use","id":"s","name":"web_search","input":{"query":"q"}},
                {"type":"web_search_tool_result","tool_use_id":"s","content":[
                    {"type":"web_search_result","url":"u","title":"t","encrypted_content":"zzz","page_age":null}]},
                {"type":"text","text":"b"}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[
                {"type":"tool_reference","tool_name":"f"},{"type":"document","title":"Log","source":
                    {"type":"text","media_type":"text/plain","data":"line"},"citations":{"enabled":false}}]}]}]}"#;
        let request: Request = serde_json::from_str(request).expect("a request");
        let messages = template_messages(None, request.messages).expect("it can be read");
        let roles: Vec<&str> = messages.iter().map(|m| m.role.as_str()).collect();
        assert_eq!(roles, ["assistant", "tool", "assistant", "tool"]);
        let calls = messages[0].tool_calls.as_ref().expect("a call");
        assert_eq!(calls[0]["function"]["arguments"]["query"], "q");
        let given = &messages[1].content;
        assert!(
            given.contains("\"url\":\"u\"") && !given.contains("zzz"),
            "{given}"
        );
        assert_eq!(messages[2].content, "b");
        assert_eq!(messages[3].content, "The tool `f` can be called.\nLog\nline");
        for (block, param) in [
            (r#"{"type":"redacted_thinking"}"#, "data"),
            (r#"{"type":"web_search_tool_result","content":[]}"#, "tool_use_id"),
            (r#"{"type":"server_tool_use","id":"s","input":{}}"#, "name"),
        ] {
            check(
                &format!(r#"{{"messages":[{{"role":"assistant","content":[{block}]}}]}}"#),
                Err(&format!("messages[0].content[0].{param}")),
            );
        }
        check(
            r#"{"messages":[{"role":"user","content":[{"type":"document","source":{"type":"base64","data":""}}]}]}"#,
            Err("messages[0].content[0].source.type"),
        );
    }
}

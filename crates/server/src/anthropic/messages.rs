//! `POST /v1/messages`: a conversation in, the next message out, in Anthropic's words.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    ApiError,
    fields::{Field, label, refuse_others, refused, yes},
    openai::chat::{TemplateMessage, Turn},
};

const NO_TOOLS: &str = "tool calls are not implemented yet";
const TEXT_ONLY: &str = "only text goes in and comes out";

/// The endpoint's fields. `top_k`, `top_p` and `temperature` are read with the other sampling fields.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "messages",
        "roles `user` and `assistant`; content as text or text blocks; the answer continues a last message of the assistant",
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
    refused("tools", NO_TOOLS),
    refused("tool_choice", NO_TOOLS),
    refused("thinking", "reasoning is not separated from the answer"),
    yes(
        "output_config",
        "`format`: `json_schema` with a `schema`, which is enforced; `effort` is refused",
    ),
    yes("output_format", "the older name of `output_config.format`"),
    refused("container", "there is no code execution"),
    refused("context_management", "send the conversation as it should be read"),
    refused("mcp_servers", NO_TOOLS),
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
    /// Strings that end the answer.
    #[serde(default)]
    pub stop_sequences: Vec<String>,
    /// Whether the answer is streamed.
    #[serde(default)]
    pub stream: bool,
}

impl MessagesRequest {
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
    /// Blocks; only `{"type": "text", "text": ...}` is supported.
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
const BLOCK_LABELS: &[&str] = &["cache_control"];

/// A content block. `cache_control` may accompany the text: prefixes are always cached.
#[derive(Clone, Debug, Deserialize)]
pub struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Checks a conversation and brings it into the form that chat templates expect.
///
/// # Errors
/// An empty conversation, or a block that is not text, by path.
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
        let content = join_blocks("system", system)?;
        converted.push(TemplateMessage {
            role: "system".to_owned(),
            content,
            name: None,
            reasoning_content: None,
        });
    }
    for (index, message) in messages.into_iter().enumerate() {
        let role = match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        let path = format!("messages[{index}]");
        refuse_others(&path, &message.others, &[])?;
        let content = join_blocks(&format!("{path}.content"), message.content)?;
        converted.push(TemplateMessage {
            role: role.to_owned(),
            content,
            name: None,
            reasoning_content: None,
        });
    }
    Ok(converted)
}

fn join_blocks(path: &str, content: Content) -> Result<String, ApiError> {
    let blocks = match content {
        Content::Text(text) => return Ok(text),
        Content::Blocks(blocks) => blocks,
    };
    let mut joined = String::new();
    for (index, block) in blocks.into_iter().enumerate() {
        match (block.kind.as_str(), block.text) {
            ("text", Some(text)) => {
                refuse_others(&format!("{path}[{index}]"), &block.others, BLOCK_LABELS)?;
                joined.push_str(&text);
            }
            ("text", None) => {
                return Err(ApiError::invalid(
                    format!("{path}[{index}].text"),
                    "this field is required",
                ));
            }
            ("tool_use" | "tool_result", _) => {
                let param = format!("{path}[{index}].type");
                return Err(ApiError::UnsupportedField {
                    param,
                    reason: NO_TOOLS,
                });
            }
            _ => {
                let param = format!("{path}[{index}].type");
                return Err(ApiError::UnsupportedField {
                    param,
                    reason: TEXT_ONLY,
                });
            }
        }
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
    fn what_cannot_be_done_is_refused_by_path() {
        check(r#"{"messages":[]}"#, Err("messages"));
        check(
            r#"{"messages":[{"role":"user","content":[{"type":"image"}]}]}"#,
            Err("messages[0].content[0].type"),
        );
        check(
            r#"{"messages":[{"role":"user","content":[{"type":"tool_result"}]}]}"#,
            Err("messages[0].content[0].type"),
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

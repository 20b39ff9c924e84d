//! `POST /v1/responses`: OpenAI's newer form of a chat request, without stored state.

use serde::Deserialize;

use super::{
    StreamOptions, TokenLimit,
    chat::{Message, TemplateMessage, Wording, template_message},
};
use crate::{
    ApiError,
    fields::{Field, label, only, refused, yes},
};

const NO_TOOLS: &str = "tool calls are not implemented yet";
const NO_STATE: &str = "nothing is stored; send the whole conversation in `input`";

/// The endpoint's own fields; of sampling it takes `temperature` and `top_p` officially, and the extensions.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "input",
        "text, or a list of messages, also those of earlier answers; other items are refused",
    ),
    yes("instructions", "a system message before the input"),
    yes("max_output_tokens", "default and -1: the rest of the context"),
    yes("stream", ""),
    yes("stream_options", ""),
    yes("top_logprobs", "at most 20"),
    yes(
        "include",
        "`message.output_text.logprobs`; anything else is refused",
    ),
    label("user"),
    label("metadata"),
    label("safety_identifier"),
    label("prompt_cache_key"),
    label("prompt_cache_options"),
    label("prompt_cache_retention"),
    label("service_tier"),
    label("parallel_tool_calls"),
    label("max_tool_calls"),
    yes(
        "text",
        "`format`: `text`, `json_object`, or `json_schema` with a schema; every schema is enforced, with `strict` or without",
    ),
    refused("tools", NO_TOOLS),
    refused("tool_choice", NO_TOOLS),
    refused("reasoning", "reasoning is not separated from the answer"),
    refused("background", "answers are not kept for later"),
    refused("conversation", NO_STATE),
    refused("previous_response_id", NO_STATE),
    refused("store", NO_STATE),
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
    Other(Other),
}

/// An item that is no message.
#[derive(Clone, Debug, Deserialize)]
pub struct Other {
    #[serde(rename = "type")]
    kind: String,
}

/// How this endpoint writes conversations. What an earlier answer carried may come back with its messages.
const WORDING: Wording = Wording {
    field: "input",
    text_kinds: &["input_text", "output_text", "text"],
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
        name: None,
        reasoning_content: None,
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
            for (index, item) in items.into_iter().enumerate() {
                let path = format!("{}[{index}]", WORDING.field);
                messages.push(match item {
                    Item::Message(message) => template_message(&path, *message, &WORDING)?,
                    Item::Other(other) => return Err(refuse_item(&path, &other.kind)),
                });
            }
        }
    }
    Ok(messages)
}

fn refuse_item(path: &str, kind: &str) -> ApiError {
    match kind {
        "message" => ApiError::invalid(format!("{path}.role"), "a message has `role` and `content`"),
        "item_reference" => ApiError::UnsupportedField {
            param: format!("{path}.type"),
            reason: NO_STATE,
        },
        "reasoning" => ApiError::UnsupportedField {
            param: format!("{path}.type"),
            reason: "reasoning is not separated from the answer",
        },
        _ => ApiError::UnsupportedField {
            param: format!("{path}.type"),
            reason: NO_TOOLS,
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
    fn what_is_no_message_of_text_is_refused_by_path() {
        check("[]", Err("input"));
        check(r#"[{"type":"item_reference","id":"x"}]"#, Err("input[0].type"));
        check(
            r#"[{"role":"user","content":"a"},{"type":"function_call_output","call_id":"c","output":"o"}]"#,
            Err("input[1].type"),
        );
        check(
            r#"[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]"#,
            Err("input[0].content[0].type"),
        );
        check(r#"[{"type":"message","content":"a"}]"#, Err("input[0].role"));
        check(
            r#"[{"role":"user","content":"a","mood":"good"}]"#,
            Err("input[0].mood"),
        );
    }
}

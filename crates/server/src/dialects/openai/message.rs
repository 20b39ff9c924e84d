//! [`Message`] is one message of a conversation in OpenAI's API; this file converts it for chat templates.
//!
//! Two endpoints have messages. Invariants: a client's message is read, or refused with its path; a model's
//! message, from this or another server, is read as far as possible, and unknown fields in it are ignored.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    chat::OLD_CALLS,
    parts::{ContentPart, Joined, TEXT_ONLY, join_parts},
};
use crate::{
    ApiError,
    requests::{earlier_calls::earlier_calls, fields::refuse_others},
};

/// Holds one message of a conversation.
#[derive(Clone, Debug, Deserialize)]
pub struct Message {
    pub(super) role: String,
    content: Option<Content>,
    name: Option<String>,
    refusal: Option<Value>,
    tool_calls: Option<Vec<Value>>,
    tool_call_id: Option<String>,
    function_call: Option<Value>,
    audio: Option<Value>,
    reasoning_content: Option<Value>,
    /// The same field under other servers' name.
    reasoning: Option<Value>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// A message's content.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of content parts")]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Parts: text and images.
    Parts(Vec<ContentPart>),
}

/// Describes how an endpoint writes conversations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wording {
    /// Name of the field with the messages.
    pub(crate) field: &'static str,
    /// Types of parts that are text.
    pub(crate) text_kinds: &'static [&'static str],
    /// Type of a part that is an image.
    pub(crate) image_kind: &'static str,
    /// Fields that only describe a message.
    pub(crate) labels: &'static [&'static str],
}

/// Describes the chat endpoint's conversations.
pub(crate) const CHAT_WORDING: Wording = Wording {
    field: "messages",
    text_kinds: &["text", "input_text", "output_text"],
    image_kind: "image_url",
    labels: &["id", "cache_control", "metadata", "timestamp", "created_at"],
};

/// Fields of an assistant's message that, if true, ask for its continuation.
const ASKING_FIELDS: [&str; 2] = ["prefix", "partial"];

/// Holds a message as the chat template sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text.
    pub content: String,
    /// Text and images in their order, if there are images.
    #[serde(skip)]
    pub parts: Vec<Value>,
    /// The author's name, if the request gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The assistant's reasoning, for templates that write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tools that the assistant called, in OpenAI's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Value>,
    /// The call whose result this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl TemplateMessage {
    /// Counts the images.
    pub(crate) fn n_images(&self) -> usize {
        let is_image = |part: &&Value| part["type"] == "image_url";
        self.parts.iter().filter(is_image).count()
    }
}

/// Checks a conversation and converts it for chat templates.
///
/// # Errors
/// Fails on an empty conversation, an unknown role, a part that is not text or an unknown field, and names the path.
pub(crate) fn template_messages(
    messages: Vec<Message>,
    wording: &Wording,
) -> Result<Vec<TemplateMessage>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid(
            wording.field,
            "a conversation needs at least one message",
        ));
    }
    messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| template_message(&format!("{}[{index}]", wording.field), message, wording))
        .collect()
}

/// Checks and converts one message, which stands at `path`.
///
/// # Errors
/// Fails like [`template_messages`].
pub(crate) fn template_message(
    path: &str,
    message: Message,
    wording: &Wording,
) -> Result<TemplateMessage, ApiError> {
    let at = |field: &str| format!("{path}.{field}");
    let unsupported = |field, reason| {
        Err(ApiError::UnsupportedField {
            param: at(field),
            reason,
        })
    };
    let is_answer = message.role == "assistant";
    let mut calls = message.tool_calls.filter(|calls| !calls.is_empty());
    let mut tool_call_id = message.tool_call_id;
    // The older form of a call and of its result.
    match message.function_call {
        Some(call) if call.is_object() && is_answer && calls.is_none() => {
            let id = old_call_id(call["name"].as_str());
            calls = Some(vec![json!({"id": id, "type": "function", "function": call})]);
        }
        Some(call) if !call.is_null() => return unsupported("function_call", OLD_CALLS),
        _ => {}
    }
    if calls.is_some() && message.role != "assistant" {
        return Err(ApiError::invalid(
            at("tool_calls"),
            "only the assistant calls tools",
        ));
    }
    let tool_calls = calls
        .map(|calls| earlier_calls(&at("tool_calls"), calls))
        .transpose()?;
    // The transcript of an earlier audio answer is read as text.
    let audio = message.audio.filter(|audio| !audio.is_null());
    if audio.is_some() && !is_answer {
        return unsupported("audio", TEXT_ONLY);
    }
    let refusal = message.refusal.filter(|refusal| !refusal.is_null());
    if refusal.is_some() && !is_answer {
        return unsupported("refusal", "write the refusal as the message's content");
    }
    let role = match message.role.as_str() {
        "function" => {
            tool_call_id = Some(old_call_id(message.name.as_deref()));
            "tool".to_owned()
        }
        "tool" if tool_call_id.as_ref().is_none_or(String::is_empty) => {
            return Err(ApiError::invalid(
                at("tool_call_id"),
                "a result must name its call",
            ));
        }
        "system" | "user" | "assistant" | "tool" => message.role,
        // `developer` is the newer name; templates know only the older.
        "developer" => "system".to_owned(),
        _ => {
            let reason = format!(
                "`{}` is not a role; expected system, developer, user, assistant or tool",
                message.role
            );
            return Err(ApiError::invalid(at("role"), reason));
        }
    };
    if is_answer {
        // Other servers may have added fields that are unknown here.
        let mut asking = message.others;
        asking.retain(|name, _| ASKING_FIELDS.contains(&name.as_str()));
        refuse_others(path, &asking, &[])?;
    } else {
        refuse_others(path, &message.others, wording.labels)?;
    }
    let Joined {
        mut text,
        parts,
        thoughts,
    } = match message.content {
        Some(Content::Text(text)) => Joined::of_text(text),
        Some(Content::Parts(parts)) => join_parts(&at("content"), parts, wording, is_answer)?,
        None if is_answer => Joined::default(),
        None => return Err(ApiError::invalid(at("content"), "this field is required")),
    };
    if text.is_empty() && parts.is_empty() {
        let transcript = audio.as_ref().and_then(|audio| audio["transcript"].as_str());
        let said = refusal.as_ref().and_then(Value::as_str).or(transcript);
        said.unwrap_or_default().clone_into(&mut text);
    }
    let reasoning = [message.reasoning_content, message.reasoning]
        .into_iter()
        .flatten();
    let reasoning = reasoning.filter_map(|reasoning| reasoning.as_str().map(str::to_owned));
    Ok(TemplateMessage {
        role,
        content: text,
        parts,
        name: message.name,
        reasoning_content: reasoning.chain(thoughts).next(),
        tool_calls,
        tool_call_id,
    })
}

/// Makes an id for a call in the older form, which has none.
fn old_call_id(name: Option<&str>) -> String {
    format!("call_{}", name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(messages: &str, expected: Result<&[(&str, &str)], &str>) {
        let messages: Vec<Message> = serde_json::from_str(messages).expect("messages of the right types");
        match (template_messages(messages, &CHAT_WORDING), expected) {
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
    fn messages_reach_the_template_as_role_and_text() {
        check(
            r#"[{"role":"developer","content":"be brief"},
                {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                {"role":"assistant","content":"c","refusal":null,"tool_calls":[],"annotations":[]}]"#,
            Ok(&[("system", "be brief"), ("user", "a\nb"), ("assistant", "c")]),
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_path() {
        check("[]", Err("messages"));
        check(r#"[{"role":"robot","content":"a"}]"#, Err("messages[0].role"));
        check(r#"[{"role":"user"}]"#, Err("messages[0].content"));
        check(
            r#"[{"role":"tool","content":"a"}]"#,
            Err("messages[0].tool_call_id"),
        );
        check(
            r#"[{"role":"user","content":[{"type":"image_url"}]}]"#,
            Err("messages[0].content[0].image_url"),
        );
        check(
            r#"[{"role":"assistant","tool_calls":[{}]}]"#,
            Err("messages[0].tool_calls[0].function.name"),
        );
        check(
            r#"[{"role":"user","content":"a","prefix":true}]"#,
            Err("messages[0].prefix"),
        );
        check(
            r#"[{"role":"user","content":[{"type":"text","text":"a","weight":2}]}]"#,
            Err("messages[0].content[0].weight"),
        );
    }
}

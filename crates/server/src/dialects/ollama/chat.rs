//! `POST /api/chat`: a conversation in, the next message out.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{KEEP_ALIVE, Think};
use crate::{
    ApiError,
    dialects::openai::chat::{TemplateMessage, Turn, n_logprobs},
    requests::{
        earlier_calls::earlier_calls,
        fields::{Field, only, refuse_others, refused, yes},
        images::{self, Parts},
        tools::{Choice, IgnoredTools, Tools},
    },
};

/// The endpoint's fields.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "messages",
        "roles `system`, `user`, `assistant` and `tool`; `images` in base64; `thinking`, `tool_calls` and `tool_name` of earlier answers; the \
         answer continues a last message of the assistant; without messages the answer says that the model is loaded",
    ),
    yes("tools", "functions"),
    yes(
        "format",
        "`json`, or a JSON schema, which is enforced; begins where the reasoning ends",
    ),
    yes("options", "below"),
    yes("stream", "default true: one line of JSON for each piece"),
    yes(
        "think",
        "true, false, `low`, `medium`, `high` or `max`: passed to templates that can switch it; reasoning is always \
         separate, as `thinking`",
    ),
    yes("logprobs", ""),
    yes("top_logprobs", "at most 20; needs `logprobs`"),
    KEEP_ALIVE,
    only(
        "truncate",
        &["false"],
        "a conversation that is too long is refused, never cut",
    ),
    only("shift", &["false"], "an answer ends where the context does"),
    refused("_debug_render_only", "`/apply-template` renders a conversation"),
];

/// A chat request.
#[derive(Clone, Debug, Deserialize)]
pub struct ChatRequest {
    /// Model name.
    pub model: Option<String>,
    /// The conversation.
    #[serde(default)]
    pub messages: Vec<Message>,
    #[serde(default)]
    tools: Vec<Value>,
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// Whether the model thinks.
    pub think: Option<Think>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
}

/// One message of a conversation.
#[derive(Clone, Debug, Deserialize)]
pub struct Message {
    role: String,
    #[serde(default)]
    content: Option<String>,
    thinking: Option<String>,
    tool_calls: Option<Vec<Value>>,
    tool_name: Option<String>,
    name: Option<String>,
    tool_call_id: Option<String>,
    images: Option<Value>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl ChatRequest {
    /// The tools that the request offers.
    ///
    /// # Errors
    /// Fails on invalid tools, and names the path.
    pub(crate) fn tools(&mut self) -> Result<Tools, ApiError> {
        let mut functions = Vec::new();
        for (index, mut tool) in std::mem::take(&mut self.tools).into_iter().enumerate() {
            let path = format!("tools[{index}]");
            if tool.get("type").is_some_and(|kind| kind != "function") {
                return Err(ApiError::UnsupportedField {
                    param: format!("{path}.type"),
                    reason: "a tool is a function",
                });
            }
            let function = tool.get_mut("function").map(Value::take).unwrap_or_default();
            functions.push((format!("{path}.function"), function));
        }
        Tools::new(functions, &Choice::Auto, true, &IgnoredTools::default())
    }

    /// Returns how many alternatives to report per token.
    ///
    /// # Errors
    /// Too many, or requested without `logprobs`.
    pub(crate) fn n_logprobs(&self) -> Result<Option<u32>, ApiError> {
        n_logprobs(self.logprobs, self.top_logprobs)
    }
}

/// Checks a conversation and brings it into the form that chat templates expect, and says how its prompt ends.
///
/// # Errors
/// An unknown role, an image or an unknown field, by path.
pub(crate) fn conversation(messages: Vec<Message>) -> Result<(Vec<TemplateMessage>, Turn), ApiError> {
    // Ollama's calls need no id: a result belongs to the first call of its tool that has none yet.
    let mut open_calls: Vec<(String, String)> = Vec::new();
    let mut conversation = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let message = template_message(&format!("messages[{index}]"), message, &mut open_calls)?;
        conversation.push(message);
    }
    let is_open = conversation
        .last()
        .is_some_and(|last| last.role == "assistant" && last.tool_calls.is_none());
    let turn = if is_open { Turn::Unfinished } else { Turn::Open };
    Ok((conversation, turn))
}

fn template_message(
    path: &str,
    message: Message,
    open_calls: &mut Vec<(String, String)>,
) -> Result<TemplateMessage, ApiError> {
    let at = |field: &str| format!("{path}.{field}");
    // Unknown fields of an answer are ignored, because other servers may have written them.
    if message.role != "assistant" {
        refuse_others(path, &message.others, &["id", "timestamp", "created_at"])?;
    }
    let content = message.content.unwrap_or_default();
    let parts = parts_with_images(&at("images"), message.images, &content)?;
    let calls = message.tool_calls.filter(|calls| !calls.is_empty());
    if calls.is_some() && message.role != "assistant" {
        return Err(ApiError::invalid(
            at("tool_calls"),
            "only the assistant calls tools",
        ));
    }
    let tool_name = message.tool_name.or(message.name);
    let mut tool_call_id = None;
    let role = match message.role.as_str() {
        "system" | "user" | "assistant" => message.role,
        "tool" => {
            tool_call_id = Some(answered_call(
                message.tool_call_id,
                tool_name.as_deref(),
                open_calls,
            ));
            message.role
        }
        // The newer name of the same thing; templates know only the older.
        "developer" => "system".to_owned(),
        role => {
            let reason = format!(
                "`{}` is not a role; expected system, user, assistant or tool",
                crate::errors::api_error::shortened(role)
            );
            return Err(ApiError::invalid(at("role"), reason));
        }
    };
    let tool_calls = match calls {
        Some(calls) => Some(named_calls(earlier_calls(&at("tool_calls"), calls)?, open_calls)),
        None => None,
    };
    Ok(TemplateMessage {
        role,
        content,
        parts,
        name: tool_name,
        reasoning_content: message.thinking,
        tool_calls,
        tool_call_id,
    })
}

/// Returns the parts of a message with images in base64 and the text after them; empty without images.
///
/// # Errors
/// Fails unless the field is a list of base64, and names the path.
pub(crate) fn parts_with_images(
    path: &str,
    images: Option<Value>,
    text: &str,
) -> Result<Vec<Value>, ApiError> {
    let list = match images {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(ApiError::invalid(path, "expected a list of images in base64")),
    };
    let mut parts = Parts::default();
    for (index, image) in list.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let base64 = image
            .as_str()
            .ok_or_else(|| ApiError::invalid(&path, "expected a string"))?;
        parts.push_image(images::of_base64(&path, base64)?);
    }
    parts.push_text(text);
    Ok(parts.finish().1)
}

/// Gives an id to the calls that have none, and remembers them with the names of their tools.
fn named_calls(mut calls: Value, open_calls: &mut Vec<(String, String)>) -> Value {
    open_calls.clear();
    for (index, call) in calls.as_array_mut().into_iter().flatten().enumerate() {
        let id = match call["id"].as_str() {
            Some(id) if !id.is_empty() => id.to_owned(),
            _ => format!("call_{index}"),
        };
        let name = call["function"]["name"].as_str().unwrap_or_default();
        open_calls.push((id.clone(), name.to_owned()));
        call["id"] = id.into();
    }
    calls
}

/// The id of the call that a result is of.
fn answered_call(id: Option<String>, tool: Option<&str>, open_calls: &mut Vec<(String, String)>) -> String {
    let id = id.filter(|id| !id.is_empty());
    let found = open_calls.iter().position(|(open_id, name)| match (&id, tool) {
        (Some(id), _) => open_id == id,
        (None, Some(tool)) => name == tool,
        (None, None) => true,
    });
    match (id, found) {
        (id, Some(found)) => {
            let (open_id, _) = open_calls.remove(found);
            id.unwrap_or(open_id)
        }
        (Some(id), None) => id,
        (None, None) => "call".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(messages: Value) -> Result<(Vec<TemplateMessage>, Turn), Option<String>> {
        let messages = serde_json::from_value(messages).expect("messages of the right types");
        conversation(messages).map_err(|error| error.param().map(str::to_owned))
    }

    #[test]
    fn results_find_their_calls() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": { "a": 1 } } });
        let (messages, turn) = read(json!([
            { "role": "user", "content": "x" },
            { "role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call("f"), call("g"), call("f")] },
            { "role": "tool", "tool_name": "g", "name": "g", "content": "1" },
            { "role": "tool", "tool_name": "f", "content": "2" },
            { "role": "tool", "content": "3" },
        ]))
        .expect("a conversation");
        let ids: Vec<_> = messages[2..].iter().map(|m| m.tool_call_id.as_deref()).collect();
        assert_eq!(ids, [Some("call_1"), Some("call_0"), Some("call_2")]);
        assert_eq!(messages[1].tool_calls.as_ref().unwrap()[2]["id"], "call_2");
        assert_eq!(messages[1].reasoning_content.as_deref(), Some("hm"));
        assert_eq!(turn, Turn::Open);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |message: Value, path: &str| {
            assert_eq!(read(json!([message])).unwrap_err().as_deref(), Some(path));
        };
        check(json!({ "role": "cook" }), "messages[0].role");
        check(
            json!({ "role": "user", "images": ["*"] }),
            "messages[0].images[0]",
        );
        check(json!({ "role": "user", "mood": "good" }), "messages[0].mood");
        let (_, turn) = read(json!([{ "role": "assistant", "content": "Once" }])).expect("a beginning");
        assert_eq!(turn, Turn::Unfinished);
    }
}

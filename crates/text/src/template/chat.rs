//! [`ChatContext`]: the variables that chat templates expect, from a conversation.
//!
//! A template takes any context; this one has the form that transformers' `apply_chat_template` gives it. Invariant:
//! optional variables are present as null, since templates compare them with `none`.

use serde_json::{Map, Value, json};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// The speaker: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

impl ChatMessage {
    /// Creates a message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }

    /// Creates a message that tells the model its task.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// Creates a message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// Creates an answer of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// Creates a message with the result of a tool.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new("tool", content)
    }
}

/// The variables of one rendering.
#[derive(Debug, Clone, Default)]
pub struct ChatContext {
    /// Messages as the template sees them: objects with `role`, `content` and any other entries of a message
    /// (`tool_calls`, `name`, `reasoning_content`). Arguments of tool calls should be objects, not JSON in a string.
    pub messages: Vec<Value>,
    /// Tools in the form of OpenAI's `tools`.
    pub tools: Option<Value>,
    /// Whether the text ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Text of the token that begins a sequence, empty if there is none.
    pub bos_token: String,
    /// Text of the token that ends a sequence, empty if there is none.
    pub eos_token: String,
    /// Further variables, such as `enable_thinking`; they win over the fields above.
    pub extra: Map<String, Value>,
}

impl ChatContext {
    /// Creates a context that asks for an answer to `messages`.
    pub fn from_messages(messages: &[ChatMessage]) -> Self {
        Self {
            messages: messages
                .iter()
                .map(|message| json!({"role": message.role, "content": message.content}))
                .collect(),
            add_generation_prompt: true,
            ..Self::default()
        }
    }

    /// Returns the context as [`ChatTemplate::render`](super::ChatTemplate::render) takes it.
    pub fn to_json(&self) -> Value {
        let mut variables = Map::new();
        variables.insert("messages".into(), Value::Array(self.messages.clone()));
        variables.insert("tools".into(), self.tools.clone().unwrap_or(Value::Null));
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), self.add_generation_prompt.into());
        variables.insert("bos_token".into(), self.bos_token.as_str().into());
        variables.insert("eos_token".into(), self.eos_token.as_str().into());
        for (name, value) in &self.extra {
            variables.insert(name.clone(), value.clone());
        }
        Value::Object(variables)
    }
}

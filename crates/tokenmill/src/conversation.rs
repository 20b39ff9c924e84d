//! [`Conversation`]: messages, tools and template variables, as a caller puts them together.
//!
//! Plain data that a chat template renders. Invariant: the contents of a message are text to the template,
//! never a control token.

use std::borrow::Borrow;

use serde_json::{Map, Value, json};
use tokenmill_text::{calls::ToolChoice, template::ChatMessage};

use crate::{Answer, ToolCall};

/// How the prompt of a conversation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The template opens the assistant's turn.
    Open,
    /// The last message is closed, and nothing follows.
    Closed,
    /// The last message is open: the model continues its text.
    Unfinished,
}

/// The input of a chat template.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// The messages: objects with `role`, `content` and other fields that the template reads (`tool_calls`,
    /// `name`).
    pub messages: Vec<Value>,
    /// Tools that the model may call, in the form of OpenAI's `tools`.
    pub tools: Option<Value>,
    /// Which of them it is to call.
    pub tool_choice: ToolChoice,
    /// Whether the answer ends after its first call.
    pub is_single_call: bool,
    /// How the text ends.
    pub turn: Turn,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

impl Conversation {
    /// A conversation of these messages, whose next turn is the assistant's.
    pub fn new(messages: impl IntoIterator<Item = impl Borrow<ChatMessage>>) -> Self {
        Self::from_json(
            messages
                .into_iter()
                .map(|message| to_json(message.borrow()))
                .collect(),
        )
    }

    /// Makes a conversation of messages as JSON, which may have further fields for the template than `role` and `content`.
    pub fn from_json(messages: Vec<Value>) -> Self {
        Self {
            messages,
            tools: None,
            tool_choice: ToolChoice::Auto,
            is_single_call: false,
            turn: Turn::Open,
            variables: Map::new(),
        }
    }

    /// Offers tools to the model, a JSON array in the form of OpenAI's `tools`.
    #[must_use]
    pub fn tools(mut self, tools: Value) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Says which tools the model is to call.
    #[must_use]
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// Ends the answer after its first call.
    #[must_use]
    pub fn single_call(mut self) -> Self {
        self.is_single_call = true;
        self
    }

    /// Adds a message.
    #[must_use]
    pub fn message(mut self, message: impl Borrow<ChatMessage>) -> Self {
        self.messages.push(to_json(message.borrow()));
        self
    }

    /// Adds an answer of the model, with its calls and its reasoning.
    #[must_use]
    pub fn answer(mut self, answer: &Answer) -> Self {
        self.messages.push(answer.to_message());
        self
    }

    /// Adds a tool's result for a call.
    #[must_use]
    pub fn result(mut self, call: &ToolCall, content: impl Into<String>) -> Self {
        let content: String = content.into();
        self.messages
            .push(json!({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}));
        self
    }

    /// Sets a variable of the template, such as `enable_thinking`.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }
}

impl From<&[ChatMessage]> for Conversation {
    fn from(messages: &[ChatMessage]) -> Self {
        Self::new(messages)
    }
}

impl<const N: usize> From<&[ChatMessage; N]> for Conversation {
    fn from(messages: &[ChatMessage; N]) -> Self {
        Self::from(&messages[..])
    }
}

impl From<&Vec<ChatMessage>> for Conversation {
    fn from(messages: &Vec<ChatMessage>) -> Self {
        Self::from(&messages[..])
    }
}

impl<const N: usize> From<[ChatMessage; N]> for Conversation {
    fn from(messages: [ChatMessage; N]) -> Self {
        Self::new(messages)
    }
}

impl From<Vec<ChatMessage>> for Conversation {
    fn from(messages: Vec<ChatMessage>) -> Self {
        Self::new(messages)
    }
}

impl From<ChatMessage> for Conversation {
    fn from(message: ChatMessage) -> Self {
        Self::new([message])
    }
}

impl From<&ChatMessage> for Conversation {
    fn from(message: &ChatMessage) -> Self {
        Self::new([message])
    }
}

/// Makes the text a message of the user.
impl From<&str> for Conversation {
    fn from(question: &str) -> Self {
        ChatMessage::user(question).into()
    }
}

/// Makes the text a message of the user.
impl From<String> for Conversation {
    fn from(question: String) -> Self {
        ChatMessage::user(question).into()
    }
}

/// Makes the text a message of the user.
impl From<&String> for Conversation {
    fn from(question: &String) -> Self {
        Self::from(question.as_str())
    }
}

impl From<&Conversation> for Conversation {
    fn from(conversation: &Conversation) -> Self {
        conversation.clone()
    }
}

fn to_json(message: &ChatMessage) -> Value {
    json!({"role": message.role, "content": message.content})
}

/// Tools as templates know them: `strict` is for the engine, not for the model.
pub(crate) fn without_strict(tools: &Value) -> Value {
    let mut tools = tools.clone();
    for tool in tools.as_array_mut().into_iter().flatten() {
        if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
            function.remove("strict");
        }
    }
    tools
}

#[cfg(test)]
mod tests {
    use tokenmill_sched::{FinishReason, Timings, Usage};

    use super::*;
    use crate::Message;

    #[test]
    fn a_question_a_message_and_lists_of_messages_are_conversations() {
        let check = |conversation: Conversation| {
            assert_eq!(conversation.messages, [json!({"role": "user", "content": "Hi"})]);
        };
        let message = || Message::user("Hi");
        check("Hi".into());
        check("Hi".to_owned().into());
        check((&"Hi".to_owned()).into());
        check(message().into());
        check((&message()).into());
        check([message()].into());
        check((&[message()]).into());
        check(vec![message()].into());
        check((&vec![message()]).into());
        check(message_slice(&[message()]).into());
    }

    fn message_slice(messages: &[Message]) -> &[Message] {
        messages
    }

    #[test]
    fn results_of_two_calls_follow_one_answer() {
        let call = |id: &str| ToolCall {
            id: id.to_owned(),
            name: "add".to_owned(),
            arguments: "{}".to_owned(),
        };
        let answer = Answer {
            text: String::new(),
            reasoning: "Both.".to_owned(),
            calls: vec![call("a"), call("b")],
            cut_call: None,
            tokens: Vec::new(),
            finish: FinishReason::Stop,
            stopped_by: None,
            usage: Usage::default(),
            reasoning_tokens: 1,
            timings: Timings::default(),
        };
        let mut conversation = Conversation::new([Message::user("Both?")]).answer(&answer);
        for call in &answer.calls {
            conversation = conversation.result(call, "7");
        }
        let of = |key: &str| -> Vec<Value> {
            let messages = conversation.messages.iter();
            messages.map(|message| message[key].clone()).collect()
        };
        assert_eq!(of("role"), ["user", "assistant", "tool", "tool"]);
        assert_eq!(
            of("tool_call_id"),
            [json!(null), json!(null), json!("a"), json!("b")]
        );
        assert_eq!(conversation.messages[1], answer.to_message());
        assert_eq!(of("reasoning_content")[1], "Both.");
    }
}

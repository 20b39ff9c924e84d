//! Rearranges the turns of a conversation for chat templates that restrict their order.
//!
//! Clients send several turns of one role, or system messages in the middle, because their own provider
//! accepts them. Many templates demand that roles alternate, or accept a system message only at the start.
//! The writing of tools, in contrast, looks at single messages. Invariant: the model gets every text, in the
//! original order.

use serde_json::{Value, json};
use tokenmill_text::template::{ChatContext, RenderOptions, TemplateError};

/// Separates two turns that are joined.
const BETWEEN: &str = "\n\n";

/// Renders a conversation. If the template refuses the order of the turns, it joins turns of one role, overrides the check of the order,
/// and renders again.
///
/// # Errors
/// Fails if the template refuses these too.
pub(crate) fn with_turns_that_fit<T>(
    context: ChatContext,
    options: RenderOptions,
    render: impl Fn(&ChatContext, &RenderOptions) -> Result<T, TemplateError>,
) -> Result<T, TemplateError> {
    match render(&context, &options) {
        Err(TemplateError::Raised { .. }) => {
            let context = ChatContext {
                messages: with_joined_turns(context.messages),
                ..context
            };
            let options = RenderOptions {
                takes_any_turns: true,
                ..options
            };
            render(&context, &options)
        }
        rendered => rendered,
    }
}

/// Moves system messages to where a template accepts them: to the start if `at_start`, else nowhere. The others are folded into the user's
/// next turn, or become a user's turn.
pub(crate) fn with_folded_system(messages: Vec<Value>, at_start: bool) -> Vec<Value> {
    let is_system = |message: &Value| message["role"] == "system";
    let n_first = messages.iter().take_while(|message| is_system(message)).count();
    let mut folded: Vec<Value> = Vec::with_capacity(messages.len());
    let mut waiting: Option<Value> = None;
    for (index, mut message) in messages.into_iter().enumerate() {
        if is_system(&message) && index < n_first && at_start {
            match folded.first_mut() {
                Some(first) => append(first, message),
                None => folded.push(message),
            }
        } else if is_system(&message) {
            message["role"] = "user".into();
            match &mut waiting {
                Some(said) => append(said, message),
                None => waiting = Some(message),
            }
        } else {
            if let Some(mut said) = waiting.take() {
                if message["role"] == "user" {
                    append(&mut said, message);
                    message = said;
                } else if message["role"] == "tool" {
                    // A call and its result must stay together.
                    waiting = Some(said);
                } else {
                    folded.push(said);
                }
            }
            folded.push(message);
        }
    }
    folded.extend(waiting);
    folded
}

/// Joins consecutive turns of the user and of the assistant.
pub(crate) fn with_joined_turns(messages: Vec<Value>) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        let is_same = |last: &&mut Value| {
            last["role"] == message["role"] && (message["role"] == "user" || message["role"] == "assistant")
        };
        match joined.last_mut().filter(is_same) {
            Some(last) => append(last, message),
            None => joined.push(message),
        }
    }
    joined
}

/// Appends a message's content and calls to another message.
fn append(message: &mut Value, more: Value) {
    let Value::Object(more) = more else { return };
    for (name, value) in more {
        match name.as_str() {
            "role" => {}
            "content" => message["content"] = both(message["content"].take(), value),
            "tool_calls" => match (&mut message["tool_calls"], value) {
                (Value::Array(calls), Value::Array(more)) => calls.extend(more),
                (calls, more) => *calls = more,
            },
            // The earlier reasoning.
            _ => match (&mut message[&name], value) {
                (Value::String(text), Value::String(more)) if name != "name" => {
                    text.push_str(BETWEEN);
                    text.push_str(&more);
                }
                (other, more) if other.is_null() => *other = more,
                _ => {}
            },
        }
    }
}

/// Joins two contents into a text, or into parts if one of them has parts.
fn both(first: Value, second: Value) -> Value {
    let is_empty = |content: &Value| match content {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(parts) => parts.is_empty(),
        _ => false,
    };
    if is_empty(&first) {
        return second;
    }
    if is_empty(&second) {
        return first;
    }
    match (first, second) {
        (Value::String(first), Value::String(second)) => format!("{first}{BETWEEN}{second}").into(),
        (first, second) => {
            let text = |text: &str| json!({"type": "text", "text": text});
            let parts = |content: Value| match content {
                Value::Array(parts) => parts,
                Value::String(said) => vec![text(&said)],
                other => vec![other],
            };
            let mut all = parts(first);
            all.push(text(BETWEEN));
            all.extend(parts(second));
            all.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(turns: &[(&str, &str)]) -> Vec<Value> {
        let message = |(role, content): &(&str, &str)| json!({"role": role, "content": content});
        turns.iter().map(message).collect()
    }

    #[test]
    fn later_system_messages_become_user_turns() {
        let check = |messages: &[(&str, &str)], at_start: bool, expected: &[(&str, &str)]| {
            assert_eq!(with_folded_system(said(messages), at_start), said(expected));
        };
        check(
            &[("system", "s"), ("system", "t"), ("user", "a")],
            true,
            &[("system", "s\n\nt"), ("user", "a")],
        );
        check(&[("system", "s"), ("user", "a")], false, &[("user", "s\n\na")]);
        check(
            &[("user", "a"), ("assistant", "b"), ("system", "s"), ("user", "c")],
            true,
            &[("user", "a"), ("assistant", "b"), ("user", "s\n\nc")],
        );
        check(
            &[("user", "a"), ("system", "s")],
            true,
            &[("user", "a"), ("user", "s")],
        );
        check(
            &[("assistant", "b"), ("system", "s"), ("tool", "r"), ("user", "c")],
            true,
            &[("assistant", "b"), ("tool", "r"), ("user", "s\n\nc")],
        );
    }

    #[test]
    fn turns_of_one_role_are_joined_with_their_images_and_calls() {
        let messages = vec![
            json!({"role": "user", "content": "a"}),
            json!({"role": "user", "content": [{"type": "image"}]}),
            json!({"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [1]}),
            json!({"role": "assistant", "content": "b", "tool_calls": [2]}),
            json!({"role": "tool", "content": "x"}),
            json!({"role": "tool", "content": "y"}),
        ];
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(
            with_joined_turns(messages),
            [
                json!({"role": "user", "content": [text("a"), text("\n\n"), {"type": "image"}]}),
                json!({"role": "assistant", "content": "b", "reasoning_content": "r", "tool_calls": [1, 2]}),
                json!({"role": "tool", "content": "x"}),
                json!({"role": "tool", "content": "y"}),
            ]
        );
    }
}

//! [`ToolWriting`]: brings tools, calls and results into the form that a chat template writes.
//!
//! Templates differ in their input: arguments as an object or as text, ids of nine letters, no results, no tools at all, system messages
//! only at the start. A small conversation is rendered once to find out. Invariant: the model gets as text whatever the template cannot
//! write; nothing is lost.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tokenmill_text::template::{ChatTemplate, RenderOptions};

use crate::turns::with_folded_system;

/// Describes the inputs that a template supports.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about a template"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolWriting {
    arguments_are_text: bool,
    /// Whether arguments may be any text, not only an object.
    takes_any_arguments: bool,
    writes_calls: bool,
    writes_results: bool,
    /// Whether the template writes a mark for an image in a result.
    shows_images_of_results: bool,
    knows_tools: bool,
    knows_system: bool,
    /// Whether system messages may come after the start.
    knows_later_system: bool,
    ids_are_short: bool,
    /// Where the template looks for an earlier answer's reasoning.
    reasoning_name: &'static str,
}

const RESULT: &str = "probe-result";

/// Replaces an image in a result for a model without vision.
const UNSEEN: &str = "[An image, which this model cannot see.]";

/// Introduces the images of a result if the template writes the result without them.
const SHOWN: &str = "The images of the result above:";

impl ToolWriting {
    /// Finds out by rendering.
    pub(crate) fn of(template: &ChatTemplate) -> Self {
        let source = template.source();
        let render_with = |messages: &Value, has_tools: bool| {
            let tool = json!({"type": "function", "function": {"name": "probe-tool", "description": "None.", "parameters": {
                "type": "object", "properties": {"some": {"type": "string", "description": "None."}}, "required": ["some"]}}});
            let tools = has_tools.then(|| vec![tool]);
            let context = json!({"messages": messages, "tools": tools, "documents": null, "add_generation_prompt": true,
                "bos_token": "", "eos_token": ""});
            template.render(&context, &RenderOptions::default()).ok()
        };
        let answered = |arguments: Value, result: Value| {
            let messages = json!([
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "call00001", "type": "function", "function": {"name": "probe-tool", "arguments": arguments}}]},
                {"role": "tool", "tool_call_id": "call00001", "name": "probe-tool", "content": result},
            ]);
            render_with(&messages, true)
        };
        let called = |arguments: Value| answered(arguments, RESULT.into());
        let says = |messages: Value, text: &str| {
            [true, false].iter().any(|&has_tools| {
                render_with(&messages, has_tools).is_some_and(|rendered| rendered.contains(text))
            })
        };
        let object = json!({"probe-key": "probe-value"});
        let writes = |rendered: &Option<String>| {
            // A quoted key in single quotes is Python's way to print a mapping, not JSON.
            (rendered.as_ref())
                .is_some_and(|text| text.contains("probe-key") && !text.contains("'probe-key'"))
        };
        let as_object = called(object.clone());
        let as_text = called(object.to_string().into());
        let takes_object = writes(&as_object);
        let takes_text = !takes_object && writes(&as_text);
        let rendered = if takes_text { as_text } else { as_object };
        let taken = if takes_text {
            object.to_string().into()
        } else {
            object.clone()
        };
        let with_parts = |parts: Value| answered(taken.clone(), parts);
        let text = || json!({"type": "text", "text": RESULT});
        let plain = with_parts(json!([text()]));
        let shown = with_parts(json!([text(), {"type": "image"}]));
        let shows_images_of_results = shown.is_some_and(|shown| {
            // A template that prints the whole list also prints the names of its parts.
            let is_printed = shown.contains("'type'") || shown.contains("\"type\": \"image\"");
            shown.contains(RESULT) && !is_printed && Some(shown) != plain
        });
        let user = || json!({"role": "user", "content": "u"});
        let system = |content: &str| json!({"role": "system", "content": content});
        let answer = json!({"role": "assistant", "content": "a"});
        Self {
            arguments_are_text: takes_text,
            takes_any_arguments: called("probe-words".into())
                .is_some_and(|text| text.contains("probe-words")),
            shows_images_of_results,
            knows_later_system: says(
                json!([user(), answer, system("probe-later"), user()]),
                "probe-later",
            ),
            writes_calls: takes_object || takes_text,
            writes_results: rendered.is_some_and(|text| text.contains(RESULT)),
            knows_tools: template.names("tools"),
            knows_system: says(json!([system("probe-system"), user()]), "probe-system"),
            ids_are_short: ["length != 9", "length == 9"]
                .iter()
                .any(|sign| source.contains(sign)),
            reasoning_name: if source.contains("reasoning_content") {
                "reasoning_content"
            } else if source.contains(".thinking") {
                "thinking"
            } else {
                "reasoning"
            },
        }
    }

    /// Messages as the template takes them.
    pub(crate) fn messages(&self, messages: &[Value], tools: Option<&Value>) -> Vec<Value> {
        let mut written: Vec<Value> = messages.iter().map(|message| self.message(message)).collect();
        if let Some(tools) = tools.filter(|_| !self.knows_tools) {
            self.tell(&mut written, tools);
        }
        let is_system = |message: &Value| message["role"] == "system";
        let (first, rest) = written
            .split_first()
            .map_or((None, &[][..]), |(first, rest)| (Some(first), rest));
        let has_first = first.is_some_and(is_system);
        let has_later = rest.iter().any(is_system);
        if has_first && !self.knows_system || has_later && !(self.knows_system && self.knows_later_system) {
            written = with_folded_system(written, self.knows_system);
        }
        written
    }

    /// Moves images in results to where the template writes them, which may be a user message after the results. For a model without
    /// vision, a text replaces them.
    pub(crate) fn place_images_of_results(&self, messages: Vec<Value>, does_see: bool) -> Vec<Value> {
        let is_image = |part: &Value| part["type"] == "image_url" || part["type"] == "image";
        let mut placed = Vec::with_capacity(messages.len());
        let mut images: Vec<Value> = Vec::new();
        for mut message in messages {
            let is_result = message["role"] == "tool";
            if !is_result {
                placed.extend(shown_by_user(&mut images));
            }
            let has_image =
                |content: &Value| content.as_array().is_some_and(|parts| parts.iter().any(is_image));
            if is_result
                && has_image(&message["content"])
                && let Value::Array(parts) = message["content"].take()
            {
                if does_see && self.shows_images_of_results {
                    message["content"] = parts.into();
                    placed.push(message);
                    continue;
                }
                let (seen, said): (Vec<Value>, Vec<Value>) = parts.into_iter().partition(is_image);
                let texts = said.iter().filter_map(|part| part["text"].as_str());
                let mut text = texts.collect::<String>();
                if does_see {
                    images.extend(seen);
                } else {
                    for _ in &seen {
                        let space = if text.is_empty() { "" } else { "\n" };
                        let _ = write!(text, "{space}{UNSEEN}");
                    }
                }
                message["content"] = text.into();
            }
            placed.push(message);
        }
        placed.extend(shown_by_user(&mut images));
        placed
    }

    fn message(&self, message: &Value) -> Value {
        let mut message = message.clone();
        let Some(fields) = message.as_object_mut() else {
            return message;
        };
        if self.reasoning_name != "reasoning_content"
            && let Some(reasoning) = fields.get("reasoning_content").cloned()
        {
            fields.insert(self.reasoning_name.to_owned(), reasoning);
        }
        let has_calls =
            (fields.get("tool_calls").and_then(Value::as_array)).is_some_and(|calls| !calls.is_empty());
        if has_calls && fields.get("content").is_none_or(Value::is_null) {
            fields.insert("content".to_owned(), "".into());
        }
        if has_calls && self.writes_calls {
            let calls = fields["tool_calls"].as_array_mut().into_iter().flatten();
            for call in calls {
                self.fit_call(call);
            }
        } else if has_calls {
            let calls = fields.remove("tool_calls").unwrap_or_default();
            let mut content = fields["content"].as_str().unwrap_or_default().to_owned();
            for call in calls.as_array().into_iter().flatten() {
                let function = call.get("function").unwrap_or(call);
                let call = json!({"name": function["name"], "arguments": as_object(&function["arguments"])});
                let space = if content.is_empty() { "" } else { "\n" };
                let _ = write!(content, "{space}<tool_call>\n{call}\n</tool_call>");
            }
            fields.insert("content".to_owned(), content.into());
        }
        if fields.get("role").is_some_and(|role| role == "tool") {
            if let Some(id) = fields.get("tool_call_id").and_then(Value::as_str) {
                let id = self.id(id);
                fields.insert("tool_call_id".to_owned(), id.into());
            }
            if !self.writes_results {
                let content = match fields.get("content") {
                    Some(Value::Array(parts)) => {
                        let text = |text: &str| json!({"type": "text", "text": text});
                        let (first, last) = (text("<tool_response>\n"), text("\n</tool_response>"));
                        std::iter::once(first)
                            .chain(parts.iter().cloned())
                            .chain([last])
                            .collect()
                    }
                    content => {
                        let content = content.and_then(Value::as_str).unwrap_or_default();
                        Value::from(format!("<tool_response>\n{content}\n</tool_response>"))
                    }
                };
                return json!({"role": "user", "content": content});
            }
        }
        message
    }

    fn fit_call(&self, call: &mut Value) {
        if let Some(id) = call.get("id").and_then(Value::as_str) {
            call["id"] = self.id(id).into();
        }
        let Some(arguments) = call
            .get_mut("function")
            .and_then(|function| function.get_mut("arguments"))
        else {
            return;
        };
        *arguments = match (self.arguments_are_text, as_object(arguments)) {
            (true, Value::Object(object)) if !arguments.is_string() => {
                Value::Object(object).to_string().into()
            }
            (true, _) if arguments.is_string() => return,
            (true, other) => other.to_string().into(),
            (false, Value::Object(object)) => object.into(),
            // A model wrote these arguments, or was cut off; it may read its own text.
            (false, other) if other.is_string() && self.takes_any_arguments => other,
            (false, other) => json!({ "arguments": other }),
        };
    }

    /// An id as the template takes it: the same one each time.
    fn id(&self, id: &str) -> String {
        if !self.ids_are_short || id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return id.to_owned();
        }
        let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        id_of(hash)
    }

    /// Describes tools to a model whose template knows no tools.
    fn tell(&self, messages: &mut Vec<Value>, tools: &Value) {
        let mut told = "You can call these tools:\n".to_owned();
        for tool in tools.as_array().into_iter().flatten() {
            told.push_str(&tool.get("function").unwrap_or(tool).to_string());
            told.push('\n');
        }
        told.push_str(
            "\nTo call one, answer with\n<tool_call>\n{\"name\": <its name>, \"arguments\": <an object>}\n</tool_call>\n\
             The result follows in the next message.",
        );
        let role = if self.knows_system { "system" } else { "user" };
        match messages.iter_mut().find(|message| message["role"] == role) {
            Some(message) => {
                let content = message["content"].as_str().unwrap_or_default();
                message["content"] = if self.knows_system {
                    format!("{content}\n\n{told}").into()
                } else {
                    format!("{told}\n\n{content}").into()
                };
            }
            None => messages.insert(0, json!({"role": role, "content": told})),
        }
    }
}

/// Builds the user's message with the images of the results.
fn shown_by_user(images: &mut Vec<Value>) -> Option<Value> {
    if images.is_empty() {
        return None;
    }
    let said = json!({"type": "text", "text": SHOWN});
    let parts: Vec<Value> = std::iter::once(said).chain(images.drain(..)).collect();
    Some(json!({"role": "user", "content": parts}))
}

/// Returns arguments as an object, if they are an object written as text.
fn as_object(arguments: &Value) -> Value {
    let parsed = arguments
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok());
    parsed
        .filter(Value::is_object)
        .unwrap_or_else(|| arguments.clone())
}

/// Nine letters and digits, which every template takes as a call's id.
pub(crate) fn id_of(mut number: u64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digit = || {
        let digit = DIGITS[(number % 36) as usize];
        number /= 36;
        char::from(digit)
    };
    (0..9).map(|_| digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writing(source: &str) -> ToolWriting {
        ToolWriting::of(&ChatTemplate::new(source).unwrap())
    }

    fn history() -> Vec<Value> {
        vec![
            json!({"role": "user", "content": "u"}),
            json!({"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}),
            json!({"role": "tool", "tool_call_id": "call_1", "content": "3"}),
        ]
    }

    const OBJECT: &str = "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}\
                          {% endfor %}{% endfor %}";

    #[test]
    fn arguments_are_what_the_template_takes() {
        let object = writing(OBJECT).messages(&history(), None);
        assert_eq!(
            object[1]["tool_calls"][0]["function"]["arguments"],
            json!({"a": 1})
        );
        assert_eq!(object[1]["content"], "");
        let source = OBJECT.replace("arguments | tojson", "arguments + ''");
        let mut with_object = history();
        with_object[1]["tool_calls"][0]["function"]["arguments"] = json!({"a": 1});
        let text = writing(&source).messages(&with_object, None);
        assert_eq!(text[1]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
    }

    #[test]
    fn what_a_template_does_not_write_is_text() {
        let plain = "{% for m in messages %}{% if m.role != 'tool' %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}";
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let messages = writing(plain).messages(&history(), Some(&tools));
        let roles: Vec<&str> = messages
            .iter()
            .map(|message| message["role"].as_str().unwrap())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert!(
            messages[0]["content"]
                .as_str()
                .unwrap()
                .contains("{\"name\":\"f\"}")
        );
        assert_eq!(
            messages[2]["content"],
            "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>"
        );
        assert_eq!(messages[3]["content"], "<tool_response>\n3\n</tool_response>");
    }

    #[test]
    fn ids_have_nine_letters_where_the_template_wants_it() {
        let source = format!("{OBJECT}{{# if id | length != 9 #}}");
        let messages = writing(&source).messages(&history(), None);
        let id = messages[1]["tool_calls"][0]["id"].as_str().unwrap().to_owned();
        assert_eq!(id.len(), 9);
        assert_eq!(messages[2]["tool_call_id"], id.as_str());
        assert_eq!(
            writing(OBJECT).messages(&history(), None)[2]["tool_call_id"],
            "call_1"
        );
    }

    #[test]
    fn reasoning_has_the_templates_name() {
        let source = OBJECT.replace("m.content", "m.content + (m.thinking or '')");
        assert_eq!(writing(&source).messages(&history(), None)[1]["thinking"], "r");
    }
}

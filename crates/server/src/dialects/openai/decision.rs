//! OpenAI's `POST /v1/decisions`: questions about an input, answers in their order.
//!
//! The input may be a conversation. It becomes one text, so that each model reads it as part of one message. Invariant: each part of an
//! input is read, or refused by its path.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenmill::decide::{
    ChoiceOption, DecideError, Decision, JsonObject, MAX_LEVELS, MAX_OPTIONS, Question, QuestionKind, State,
    image_of_part,
};

/// Fields that describe an item or a part, and change nothing.
const LABELS: [&str; 8] = [
    "type",
    "id",
    "status",
    "phase",
    "namespace",
    "annotations",
    "logprobs",
    "prompt_cache_breakpoint",
];

/// Questions in order.
#[derive(Clone, Debug)]
pub(crate) struct Questions {
    names: Vec<Option<String>>,
    pub(crate) asked: Vec<Question>,
    /// The values of each question's options: texts and booleans of a choice, labels of levels.
    values: Vec<Vec<Value>>,
}

impl Questions {
    /// Reads the questions of a request.
    ///
    /// # Errors
    /// The first fault, with its path.
    pub(crate) fn parse(values: &[Value]) -> Result<Self, DecideError> {
        let mut parsed = Self {
            names: Vec::new(),
            asked: Vec::new(),
            values: Vec::new(),
        };
        for object in JsonObject::questions(values)? {
            let (question, values) = question(&object)?;
            parsed.names.push(object.string_if("name")?.map(str::to_owned));
            parsed.asked.push(question);
            parsed.values.push(values);
        }
        Ok(parsed)
    }

    /// Writes the answers in the order of the questions.
    pub(crate) fn answers(&self, decisions: &[Decision]) -> Vec<Value> {
        let asked = self.names.iter().zip(&self.asked).zip(&self.values);
        let answers = asked
            .zip(decisions)
            .map(|(((name, question), values), decision)| {
                let mut answer = answer(question, values, decision);
                answer["name"] = name.as_deref().into();
                answer["x_label_mass"] = decision.label_mass.into();
                answer
            });
        answers.collect()
    }
}

fn question(object: &JsonObject<'_>) -> Result<(Question, Vec<Value>), DecideError> {
    let mut values = Vec::new();
    let kind = match object.string("type")? {
        "predicate" => {
            object.refuse_others(&["type", "name", "instructions"])?;
            QuestionKind::Predicate {
                yes: String::new(),
                no: String::new(),
            }
        }
        "choice" => {
            object.refuse_others(&["type", "name", "instructions", "choices"])?;
            let mut options = Vec::new();
            for choice in object.objects("choices", 2..=MAX_OPTIONS)? {
                let choice = choice?;
                choice.refuse_others(&["value", "description"])?;
                let (name, value) = match choice.get("value") {
                    Some(value @ Value::String(name)) => (name.clone(), value),
                    Some(value @ Value::Bool(is_true)) => (is_true.to_string(), value),
                    _ => return choice.invalid("value", "expected a text or a boolean"),
                };
                if values.contains(value) {
                    return choice.invalid("value", "another choice has this value");
                }
                values.push(value.clone());
                options.push(ChoiceOption {
                    name,
                    description: choice.string_if("description")?.unwrap_or_default().to_owned(),
                });
            }
            QuestionKind::Choice(options)
        }
        "score" => {
            object.refuse_others(&["type", "name", "instructions", "levels"])?;
            let mut levels = Vec::new();
            for level in object.objects("levels", 2..=MAX_LEVELS)? {
                let level = level?;
                level.refuse_others(&["label", "description"])?;
                let label = level.string("label")?;
                values.push(label.into());
                levels.push(match level.string_if("description")?.unwrap_or_default() {
                    "" => label.to_owned(),
                    // The prompt has the number.
                    description if label == levels.len().to_string() => description.to_owned(),
                    description => format!("{label} - {description}"),
                });
            }
            QuestionKind::Score(levels)
        }
        _ => return object.invalid("type", "expected `predicate`, `choice` or `score`"),
    };
    let instructions = content(object, "instructions")?;
    let Some(instructions) = instructions.as_text() else {
        return object.invalid("instructions", "images are a part of the input");
    };
    if instructions.trim().is_empty() {
        return object.invalid("instructions", "is empty");
    }
    let instructions = instructions.to_owned();
    Ok((Question { instructions, kind }, values))
}

fn answer(question: &Question, values: &[Value], decision: &Decision) -> Value {
    let pairs = values.iter().zip(&decision.probabilities);
    match &question.kind {
        QuestionKind::Predicate { .. } => {
            json!({ "type": "predicate", "probability": decision.probabilities[0] })
        }
        QuestionKind::Choice(_) => {
            let probabilities =
                pairs.map(|(value, probability)| json!({ "value": value, "probability": probability }));
            json!({
                "type": "choice",
                "choice": values[decision.likeliest()],
                "confidence": decision.choice_confidence(),
                "probabilities": probabilities.collect::<Vec<_>>(),
            })
        }
        QuestionKind::Score(_) => {
            let probabilities = pairs.enumerate().map(|(level, (label, probability))| {
                json!({ "value": level, "label": label, "probability": probability })
            });
            json!({
                "type": "score",
                "score": decision.expected_level(),
                "confidence": decision.score_confidence(),
                "probabilities": probabilities.collect::<Vec<_>>(),
            })
        }
    }
}

/// Returns the state of an input: a text itself, the content of a single message of the user, or a conversation with the roles.
///
/// # Errors
/// An item or a part that cannot be read, with its path.
pub(crate) fn input_state(input: &Value) -> Result<State, DecideError> {
    let items = match input {
        Value::String(text) => return Ok(text.into()),
        Value::Array(items) if !items.is_empty() => items,
        _ => return Err(DecideError::json("input", "expected a text or a list of items")),
    };
    let mut calls = HashMap::new();
    let mut state = State::default();
    for item in JsonObject::each("input", items) {
        let item = item?;
        let written = write_item(&item, &mut calls)?;
        if let ([_], Some("user")) = (&items[..], item.string_if("role")?) {
            return content(&item, "content");
        }
        state = after(state, "\n\n").then(written);
    }
    Ok(state)
}

/// Writes an item of a conversation. `calls` are the names of the tools that were called, by the ids of the calls.
fn write_item<'a>(
    item: &JsonObject<'a>,
    calls: &mut HashMap<&'a str, &'a str>,
) -> Result<State, DecideError> {
    let check = |own: &[&str]| item.refuse_others(&[&LABELS[..], own].concat());
    match item.string_if("type")?.unwrap_or("message") {
        "message" => {
            check(&["role", "content"])?;
            let role = match item.string("role")? {
                "user" => "User",
                "assistant" => "Assistant",
                "system" => "System",
                "developer" => "Developer",
                _ => return item.invalid("role", "is no role"),
            };
            Ok(State::from(format!("{role}: ")).then(content(item, "content")?))
        }
        kind @ ("function_call" | "custom_tool_call") => {
            let given = if kind == "function_call" {
                "arguments"
            } else {
                "input"
            };
            check(&["call_id", "name", given])?;
            let name = item.string("name")?;
            calls.insert(item.string("call_id")?, name);
            Ok(format!("Assistant calls {name}: {}", item.string(given)?).into())
        }
        "function_call_output" | "custom_tool_call_output" => {
            check(&["call_id", "output"])?;
            let Some(name) = calls.get(item.string("call_id")?) else {
                return item.invalid("call_id", "no call before it has this id");
            };
            Ok(State::from(format!("Result of {name}: ")).then(content(item, "output")?))
        }
        _ => item.invalid("type", "expected a message, a call of a tool or its output"),
    }
}

/// Returns a state with a text after it, except one that has nothing.
fn after(state: State, text: &str) -> State {
    if state.is_empty() { state } else { state.text(text) }
}

/// Returns the content of a field that is a text or a list of parts.
fn content(object: &JsonObject<'_>, name: &str) -> Result<State, DecideError> {
    let parts = match object.get(name) {
        Some(Value::String(text)) => return Ok(text.into()),
        Some(Value::Array(parts)) => parts,
        Some(_) => return object.invalid(name, "expected a text or a list of parts"),
        None => return object.invalid(name, "this field is required"),
    };
    let mut state = State::default();
    for part in JsonObject::each(object.inner(name), parts) {
        let part = part?;
        let check = |own: &[&str]| part.refuse_others(&[&LABELS[..], own].concat());
        let written = match part.string("type")? {
            "input_text" | "output_text" => {
                check(&["text"])?;
                part.string("text")?.into()
            }
            "refusal" => {
                check(&["refusal"])?;
                part.string("refusal")?.into()
            }
            "input_json" => {
                check(&["data"])?;
                match part.get("data") {
                    Some(data @ (Value::Object(_) | Value::Array(_))) => data.to_string().into(),
                    _ => return part.invalid("data", "expected an object or a list"),
                }
            }
            "input_image" => {
                check(&["image_url", "detail"])?;
                State::default().image(image_of_part(&part)?)
            }
            _ => return part.invalid("type", "expected `input_text`, `input_json` or `input_image`"),
        };
        state = after(state, "\n").then(written);
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ApiError;

    #[test]
    fn a_conversation_becomes_one_text() {
        let check = |input: Value, expected: &str| {
            assert_eq!(input_state(&input).unwrap().as_text(), Some(expected));
        };
        check(json!("as it is"), "as it is");
        check(json!([{ "role": "user", "content": "alone" }]), "alone");
        let parts =
            json!([{ "type": "input_text", "text": "a" }, { "type": "input_json", "data": { "b": 1 } }]);
        check(
            json!([{ "type": "message", "role": "user", "content": parts }]),
            "a\n{\"b\":1}",
        );
        check(
            json!([
                { "role": "system", "content": "Be kind." },
                { "role": "user", "content": "Weather?" },
                { "type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "c", "output": "rain" },
                { "role": "assistant", "content": [{ "type": "output_text", "text": "It rains." }] },
            ]),
            "System: Be kind.\n\nUser: Weather?\n\nAssistant calls weather: {}\n\nResult of weather: rain\n\nAssistant: It rains.",
        );
    }

    #[test]
    fn a_level_has_its_number_once() {
        let level = |label: &str, description: Value| json!({ "label": label, "description": description });
        let levels = json!([
            level("0", json!("can wait")),
            level("today", Value::Null),
            level("1", json!("now"))
        ]);
        let asked = json!([{ "type": "score", "instructions": "How urgent?", "levels": levels }]);
        let parsed = Questions::parse(asked.as_array().unwrap()).unwrap();
        assert_eq!(
            parsed.asked,
            [Question::score("How urgent?", ["can wait", "today", "1 - now"])]
        );
    }

    #[test]
    fn images_keep_their_places() {
        let url = "data:image/png;base64,aGk=";
        let parts = json!([
            { "type": "input_text", "text": "a" }, { "type": "input_image", "image_url": url, "detail": "low" },
            { "type": "input_text", "text": "b" },
        ]);
        let state = input_state(&json!([{ "role": "user", "content": parts }])).unwrap();
        let seen = |before: &str| State::from(before).image(&b"hi"[..]).text("\nb");
        assert_eq!(state, seen("a\n"));
        let items = json!([{ "role": "user", "content": parts }, { "role": "assistant", "content": "c" }]);
        let state = input_state(&items).unwrap();
        assert_eq!(state, seen("User: a\n").text("\n\nAssistant: c"));
    }

    #[test]
    fn a_fault_of_an_input_has_its_path() {
        let image = json!({ "type": "input_image", "image_url": "https://example.org/a.png" });
        for (input, path) in [
            (json!(3), "input"),
            (json!([]), "input"),
            (json!(["a"]), "input[0]"),
            (json!([{ "role": "robot", "content": "a" }]), "input[0].role"),
            (json!([{ "role": "user" }]), "input[0].content"),
            (
                json!([{ "role": "user", "content": "a", "mood": 1 }]),
                "input[0].mood",
            ),
            (
                json!([{ "role": "user", "content": [image] }]),
                "input[0].content[0].image_url",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "audio" }] }]),
                "input[0].content[0].type",
            ),
            (json!([{ "type": "reasoning" }]), "input[0].type"),
            (
                json!([{ "type": "function_call_output", "call_id": "c", "output": "a" }]),
                "input[0].call_id",
            ),
        ] {
            let error = ApiError::from(input_state(&input).unwrap_err());
            assert_eq!(error.param(), Some(path), "{input}");
        }
    }
}

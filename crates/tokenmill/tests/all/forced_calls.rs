//! Calls that are required and reasoning with a budget, on the built-in model at a temperature at which it babbles.

use serde_json::{Value, json};
use tokenmill::{Conversation, Device, Error, Message, Model, SamplingParams, TextParams, ToolChoice};

/// A model whose template has `signs` in it and ends a prompt with `end`.
fn model(signs: &str, end: &str) -> Model {
    let template = format!(
        "{{% for m in messages %}}{{{{ m.content }}}};{{% endfor %}}{{% if false %}}{signs}{{% endif %}}{end}"
    );
    let options = Model::options().context(1024).threads(1).device(Device::Cpu);
    options.chat_template(template).load("demo").unwrap()
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "paint", "strict": true, "parameters": {"type": "object", "properties": {
            "colour": {"enum": ["red", "green"]}, "coats": {"type": "integer", "minimum": 1, "maximum": 3}},
            "required": ["colour", "coats"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "additionalProperties": false}}},
    ])
}

fn asking() -> Conversation {
    Conversation::new([Message::user("Well?")]).tools(tools())
}

fn babbling(seed: u64) -> TextParams {
    TextParams {
        sampling: SamplingParams {
            temperature: 2.0,
            seed,
            ..SamplingParams::default()
        },
        max_tokens: Some(300),
        ..TextParams::default()
    }
}

#[test]
fn required_calls_are_made_and_obey_their_schemas() {
    let model = model("<tool_call>", "");
    for seed in 0..4 {
        let required = asking().tool_choice(ToolChoice::Required).single_call();
        let answer = model.chat(required, &babbling(seed)).unwrap();
        assert_eq!((answer.text.as_str(), answer.calls.len()), ("", 1), "{answer:?}");
        let named = asking().tool_choice(ToolChoice::Named("paint".to_owned()));
        let answer = model.chat(named, &babbling(seed)).unwrap();
        let [call] = &answer.calls[..] else {
            panic!("{answer:?}");
        };
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        assert!(
            arguments["colour"] == "red" || arguments["colour"] == "green",
            "{arguments}"
        );
        assert!(
            (1..=3).contains(&arguments["coats"].as_i64().unwrap()),
            "{arguments}"
        );
    }
    let absent = asking().tool_choice(ToolChoice::Named("absent".to_owned()));
    let refused = model.chat(absent, &babbling(1));
    assert!(matches!(refused, Err(Error::UnknownTool { .. })), "{refused:?}");
}

#[test]
fn a_budget_ends_the_reasoning() {
    let model = model("</think>", "<think>");
    let params = TextParams {
        thinking_budget: Some(9),
        ..babbling(3)
    };
    let answer = model
        .chat(Conversation::new([Message::user("Well?")]), &params)
        .unwrap();
    assert!(
        !answer.reasoning.is_empty() && !answer.text.is_empty(),
        "{answer:?}"
    );
    assert!((9..21).contains(&answer.reasoning_tokens), "{answer:?}");
    // Calls that are required come after it.
    let required = asking().tool_choice(ToolChoice::Required).single_call();
    let answer = model.chat(required, &params).unwrap();
    assert_eq!((answer.text.as_str(), answer.calls.len()), ("", 1), "{answer:?}");
    assert!((9..21).contains(&answer.reasoning_tokens), "{answer:?}");
}

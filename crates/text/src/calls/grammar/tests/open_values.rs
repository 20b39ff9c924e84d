//! Arguments that may be a text or something else, in formats with a tag for each argument.
//!
//! Templates write a text bare and anything else as JSON. Invariant: a template's text for such an argument is allowed, and read
//! back as the same value.

use std::sync::Arc;

use super::{ConstraintCompiler, ToolChoice, Value, json, tokenizer, tool, walk_of};
use crate::calls::{Opening, Part, ReplyParser, ToolSet};

/// Returns a call of `f` with this argument, as the family's template writes it.
fn call(name: &str, key: &str, value: &str, is_text: bool) -> String {
    match name {
        "qwen3-coder" => {
            format!(
                "<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
            )
        }
        "glm" => {
            format!("<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>")
        }
        "minimax" => format!(
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"{key}\">{value}</parameter>\n</invoke>\n</minimax:tool_call>"
        ),
        "deepseek-v3.2" => format!(
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"{key}\" string=\"{is_text}\">{value}\
             </｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        ),
        _ => unreachable!(),
    }
}

/// Returns the arguments of a call.
fn arguments_read(name: &str, tools: &Value, text: &str) -> Value {
    let tools = ToolSet::from_openai(tools);
    let mut parser = ReplyParser::new(&super::format(name), Arc::new(tools), Opening::default());
    let mut pieces = parser.push(text);
    pieces.extend(parser.finish());
    let deltas = pieces.into_iter().filter_map(|piece| match piece.part {
        Part::Arguments { delta, .. } => Some(delta),
        _ => None,
    });
    serde_json::from_str(&deltas.collect::<String>()).unwrap()
}

#[test]
fn what_a_template_writes_of_an_open_value_is_allowed_and_read_back() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    let schemas = json!({"open": {"description": "Anything."}, "id": {"type": ["string", "integer"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "title": "Note"},
        "choice": {"enum": ["a", 1]}});
    for name in ["qwen3-coder", "glm", "minimax", "deepseek-v3.2"] {
        for (key, value) in [
            ("open", json!("Is it <so>?\nYes.")),
            ("open", json!({"a": [1, "b"]})),
            ("open", json!(false)),
            ("id", json!("seven")),
            ("id", json!(7)),
            ("note", json!("by the way")),
            ("note", json!(null)),
            ("choice", json!(1)),
        ] {
            let parameters = json!({"type": "object", "properties": {key: schemas[key]}, "required": [key]});
            let written = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let text = call(name, key, &written, value.is_string());
            for strict in [true, false] {
                let tools = json!([tool("f", strict, &parameters)]);
                let required = ToolChoice::Required;
                let mut walk = walk_of(&tools, name, &tokenizer, &compiler, &required, true, 1).unwrap();
                walk.write(&text);
                assert_eq!(String::from_utf8_lossy(&walk.text), text, "{name}: {key}");
                assert_eq!(
                    arguments_read(name, &tools, &text),
                    json!({key: value}),
                    "{name}: {text}"
                );
            }
        }
    }
}

/// A tool that is not strict accepts arguments that its schema does not name, including those that begin like a named one.
#[test]
fn arguments_of_any_name_are_allowed_and_read_back() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": true});
    let tools = json!([tool("f", false, &parameters)]);
    for name in ["qwen3-coder", "glm", "minimax", "deepseek-v3.2", "gemma", "lfm2"] {
        for (key, value) in [
            ("city", json!("Oslo")),
            ("cities", json!("Oslo, Rome")),
            ("country_code", json!(47)),
            ("x", json!("a\nb")),
        ] {
            let written = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let text = match name {
                "gemma" if value.is_string() => {
                    format!("<|tool_call>call:f{{{key}:<|\"|>{written}<|\"|>}}<tool_call|>")
                }
                "gemma" => format!("<|tool_call>call:f{{{key}:{written}}}<tool_call|>"),
                "lfm2" => format!("<|tool_call_start|>[f({key}={value})]<|tool_call_end|>"),
                _ => call(name, key, &written, value.is_string()),
            };
            let required = ToolChoice::Required;
            let mut walk = walk_of(&tools, name, &tokenizer, &compiler, &required, true, 1).unwrap();
            walk.write(&text);
            assert_eq!(String::from_utf8_lossy(&walk.text), text, "{name}: {key}");
            assert_eq!(
                arguments_read(name, &tools, &text),
                json!({key: value}),
                "{name}: {text}"
            );
        }
    }
}

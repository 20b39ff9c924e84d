//! Tests that the parser reads every text that a grammar of calls allows, with arguments of the schema.

mod known_ways;
mod long_tokens;
mod open_values;
mod shapes;

use std::sync::Arc;

use serde_json::{Value, json};
use tokenmill_gguf::{Metadata, StringArray};

use super::{CallFormError, ToolChoice};
use crate::{
    Tokenizer,
    calls::{Opening, Part, ReplyFormat, ReplyParser, ToolSet, families::FORMATS},
    constraint::{Constraint, ConstraintCompiler, ConstraintMatcher, ControlTokens},
};

/// Marks that are control tokens in the vocabularies of their families.
const CONTROLS: [&str; 12] = [
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|start|>",
    "<|end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|tool_call|>",
    "<|\"|>",
];

/// Builds a vocabulary of all bytes, the end, and control tokens.
fn tokenizer() -> Tokenizer {
    tokenizer_with(&[])
}

/// Builds such a vocabulary with words after the control tokens.
fn tokenizer_with(words: &[&str]) -> Tokenizer {
    let mut metadata = Metadata::new();
    let tokens = (0..256)
        .map(|byte| format!("<0x{byte:02X}>"))
        .chain(["<end>".to_owned(), "<unk>".to_owned()])
        .chain(CONTROLS.map(str::to_owned))
        .chain(words.iter().map(|&word| word.to_owned()));
    let mut kinds = vec![6; 256];
    kinds.extend([3, 2]);
    kinds.extend([3; CONTROLS.len()]);
    kinds.extend(words.iter().map(|_| 1));
    let n_tokens = kinds.len();
    let set = || -> Result<(), tokenmill_gguf::GgufError> {
        metadata.insert("tokenizer.ggml.model", "llama")?;
        metadata.insert("tokenizer.ggml.tokens", tokens.collect::<StringArray>())?;
        metadata.insert("tokenizer.ggml.scores", vec![0f32; n_tokens])?;
        metadata.insert("tokenizer.ggml.token_type", kinds)?;
        metadata.insert("tokenizer.ggml.eos_token_id", 256u32)?;
        metadata.insert("tokenizer.ggml.unknown_token_id", 257u32)?;
        Ok(())
    };
    set().unwrap();
    Tokenizer::from_gguf(&metadata).unwrap()
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Where."},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "hours": {"type": "array", "items": {"type": "integer"}}},
            "required": ["city", "days"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}},
        {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {
            "what": {"type": "string", "pattern": "^[a-f]{2,4}$"}, "deep": {"type": "boolean"}}, "additionalProperties": false}}},
    ])
}

fn format(name: &str) -> ReplyFormat {
    ReplyFormat {
        calls: FORMATS.iter().find(|row| row.name == name).expect("a row"),
        thinking: None,
    }
}

fn opens_head(name: &str) -> bool {
    matches!(name, "harmony" | "functionary")
}

/// Generates pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// Walks at random through the allowed tokens, and now and then writes a mark so that texts come to an end.
struct Walk<'t> {
    tokenizer: &'t Tokenizer,
    matcher: ConstraintMatcher,
    dice: Dice,
    ends: Vec<String>,
    text: Vec<u8>,
}

impl Walk<'_> {
    fn allowed(&mut self) -> Vec<u32> {
        let mut mask = [0; 9];
        self.matcher.mask(&mut mask).unwrap();
        (0..288)
            .filter(|id| mask[id / 32] >> (id % 32) & 1 == 1)
            .map(|id| id as u32)
            .collect()
    }

    fn take(&mut self, id: u32) {
        self.matcher.commit(id).unwrap();
        self.text
            .extend_from_slice(self.tokenizer.token_bytes(id).unwrap());
    }

    /// Writes a text as far as it is allowed.
    fn write(&mut self, text: &str) {
        let controls = ControlTokens::of(self.tokenizer);
        for segment in controls.split(text) {
            let ids: Vec<u32> = match segment {
                crate::constraint::Segment::Control(id) => vec![id],
                crate::constraint::Segment::Text(text) => text.bytes().map(u32::from).collect(),
            };
            for id in ids {
                if self.matcher.is_complete() || !self.allowed().contains(&id) {
                    return;
                }
                self.take(id);
            }
        }
    }

    /// Walks to the end; returns false if it is not reached.
    fn finish(&mut self) -> bool {
        for _ in 0..2000 {
            if self.matcher.is_complete() {
                return true;
            }
            let allowed = self.allowed();
            assert!(!allowed.is_empty(), "{}", String::from_utf8_lossy(&self.text));
            // After a call the text is free, and may end.
            let is_free = allowed.len() > 250;
            if allowed.contains(&256) && (is_free || allowed.len() == 1 || self.dice.roll(3) == 0) {
                return true;
            }
            let others: Vec<u32> = allowed.into_iter().filter(|&id| id != 256).collect();
            if others.len() > 30 && self.dice.roll(3) > 0 {
                let end = self.ends[self.dice.roll(self.ends.len())].clone();
                self.write(&end);
            } else {
                let id = others[self.dice.roll(others.len())];
                self.take(id);
            }
        }
        false
    }
}

/// Reads an answer's calls, as names and arguments, and its text.
fn read(name: &str, answer: &str) -> (Vec<(String, Value)>, String) {
    read_with(parser(name), name, answer)
}

/// Makes a parser of answers with the tools of these tests.
fn parser(name: &str) -> ReplyParser {
    let tools = Arc::new(ToolSet::from_openai(&tools()));
    let opening = Opening {
        is_head: opens_head(name),
        ..Opening::default()
    };
    ReplyParser::new(&format(name), tools, opening)
}

fn read_with(mut parser: ReplyParser, name: &str, answer: &str) -> (Vec<(String, Value)>, String) {
    let mut pieces = parser.push(answer);
    pieces.extend(parser.finish());
    let (mut calls, mut text, mut arguments, mut called) =
        (Vec::new(), String::new(), String::new(), String::new());
    for piece in pieces {
        match piece.part {
            Part::Text(more) => text.push_str(&more),
            Part::CallStart { name, .. } => {
                called = name;
                arguments.clear();
            }
            Part::Arguments { delta, .. } => arguments.push_str(&delta),
            Part::CallEnd { .. } => calls.push((
                called.clone(),
                serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {arguments}")),
            )),
            Part::CallBroken { source, .. } => panic!("{name}: broken off: {source:?} of {answer:?}"),
            Part::CallCut { .. } | Part::Reasoning(_) | Part::Markup => {}
        }
    }
    (calls, text)
}

fn check_arguments(name: &str, arguments: &Value) {
    let arguments = arguments.as_object().expect("an object");
    match name {
        "weather" => {
            assert!(arguments["city"].is_string());
            assert!(
                (1..=14).contains(&arguments["days"].as_i64().expect("a number")),
                "{arguments:?}"
            );
            assert!(
                arguments
                    .get("unit")
                    .is_none_or(|unit| unit == "C" || unit == "F")
            );
            let hours = arguments
                .get("hours")
                .map(|hours| hours.as_array().expect("a list"));
            assert!(
                hours.is_none_or(|hours| hours
                    .iter()
                    .all(|hour| hour.as_f64().is_some_and(|hour| hour.fract() == 0.0))),
                "{arguments:?}"
            );
            assert!(
                arguments
                    .keys()
                    .all(|key| ["city", "days", "unit", "hours"].contains(&key.as_str()))
            );
        }
        "now" => assert!(arguments.is_empty()),
        "find" => {
            let what = arguments.get("what").map(|what| what.as_str().expect("a text"));
            let is_hex = |text: &str| {
                (2..=4).contains(&text.len()) && text.bytes().all(|byte| (b'a'..=b'f').contains(&byte))
            };
            assert!(what.is_none_or(is_hex), "{arguments:?}");
            assert!(arguments.get("deep").is_none_or(Value::is_boolean));
        }
        other => panic!("no tool {other}"),
    }
}

fn walk<'t>(
    name: &str,
    tokenizer: &'t Tokenizer,
    compiler: &ConstraintCompiler,
    choice: &ToolChoice,
    is_single: bool,
    seed: u64,
) -> Result<Walk<'t>, CallFormError> {
    walk_of(&tools(), name, tokenizer, compiler, choice, is_single, seed)
}

fn walk_of<'t>(
    tools: &Value,
    name: &str,
    tokenizer: &'t Tokenizer,
    compiler: &ConstraintCompiler,
    choice: &ToolChoice,
    is_single: bool,
    seed: u64,
) -> Result<Walk<'t>, CallFormError> {
    let tools = ToolSet::from_openai(tools);
    let controls = ControlTokens::of(tokenizer);
    let format = format(name);
    let constraint = format.constraint(&tools, choice, is_single, &controls, opens_head(name))?;
    Ok(walk_along(&constraint, name, tokenizer, compiler, seed))
}

fn walk_along<'t>(
    constraint: &Constraint,
    name: &str,
    tokenizer: &'t Tokenizer,
    compiler: &ConstraintCompiler,
    seed: u64,
) -> Walk<'t> {
    let compiled = compiler
        .compile(constraint)
        .unwrap_or_else(|error| panic!("{name}: {error}: {constraint:?}"));
    let tools = ToolSet::from_openai(&tools());
    let parser = ReplyParser::new(&format(name), Arc::new(tools), Opening::default());
    let mut ends: Vec<String> = parser.marks().into_iter().map(str::to_owned).collect();
    ends.extend(ends.clone().iter().map(|end| format!("\n{end}")));
    ends.extend(["\"", "\"}", "}", "]", "\"}}", "]]>"].map(str::to_owned));
    Walk {
        tokenizer,
        matcher: compiled.matcher(&[256]),
        dice: Dice(seed.wrapping_mul(0x9e37_79b9) + 1),
        ends,
        text: Vec::new(),
    }
}

#[test]
fn what_is_forced_is_read_back_with_valid_arguments() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    for row in FORMATS {
        let mut n_read = 0;
        for seed in 0..12 {
            let (choice, is_single) = match seed % 3 {
                0 => (ToolChoice::Required, false),
                1 => (ToolChoice::Required, true),
                _ => (ToolChoice::Named("weather".to_owned()), false),
            };
            let mut walk = walk(row.name, &tokenizer, &compiler, &choice, is_single, seed)
                .unwrap_or_else(|error| panic!("{error}"));
            if row.name == "harmony" {
                walk.text
                    .extend_from_slice(b"<|channel|>analysis<|message|>Hm.<|end|>");
            }
            if !walk.finish() {
                continue;
            }
            let answer = String::from_utf8(walk.text).expect("UTF-8");
            let (calls, text) = read(row.name, &answer);
            assert_eq!(text.trim(), "", "{}: {answer:?}", row.name);
            assert!(!calls.is_empty(), "{}: {answer:?}", row.name);
            assert!(calls.len() == 1 || seed % 3 == 0, "{}: {answer:?}", row.name);
            for (called, arguments) in &calls {
                check_arguments(called, arguments);
                assert!(seed % 3 != 2 || called == "weather");
            }
            n_read += 1;
        }
        assert!(
            n_read >= 6,
            "{}: {n_read} of 12 walks came to their end",
            row.name
        );
    }
}

#[test]
fn a_call_that_begins_in_free_text_obeys_its_schema() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    for row in FORMATS.iter().filter(|row| !opens_head(row.name)) {
        let mut n_read = 0;
        for seed in 0..6 {
            let mut walk = walk(row.name, &tokenizer, &compiler, &ToolChoice::Auto, false, seed).unwrap();
            let begin = match row.name {
                "llama" => "{\"name\": \"weather\"".to_owned(),
                name => format!("Let me look <there>.\n{}", opener(name)),
            };
            assert!(walk.allowed().contains(&256), "{}: it may end at once", row.name);
            walk.write(&begin);
            assert_eq!(String::from_utf8_lossy(&walk.text), begin, "{}", row.name);
            assert!(
                !walk.allowed().contains(&256),
                "{}: a call that began ends",
                row.name
            );
            if !walk.finish() {
                continue;
            }
            let answer = String::from_utf8(walk.text).expect("UTF-8");
            let (calls, text) = read(row.name, &answer);
            assert!(!calls.is_empty(), "{}: {answer:?}", row.name);
            assert_eq!(
                text.trim(),
                if row.name == "llama" {
                    ""
                } else {
                    "Let me look <there>."
                },
                "{}: {answer:?}",
                row.name
            );
            for (called, arguments) in &calls {
                check_arguments(called, arguments);
            }
            n_read += 1;
        }
        assert!(n_read >= 2, "{}: {n_read} of 6 walks came to their end", row.name);
    }
}

/// Holds calls of `now` in formats with a mark at the end of a call: up to the end of the arguments, and the ends in free text.
const ENDS: &[(&str, &str, &[&str])] = &[
    (
        "deepseek-v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}",
        &[
            "\n```<｜tool▁call▁end｜>",
            "\n```\n<｜tool▁call▁end｜>",
            "\n```<｜tool▁calls▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
    ),
    (
        "deepseek-v3.1",
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}",
        &[
            "<｜tool▁call▁end｜>",
            "\n<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
    ),
    (
        "kimi-k2",
        "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}",
        &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
    ),
    (
        "solar",
        "<|tool_call:begin|>abcdefghi<|tool_call:name|>now<|tool_call:args|>{}",
        &["<|tool_call:end|>", "<|calls|>"],
    ),
    ("function-json", "<function=now>{}", &["</function>"]),
    (
        "hermes",
        "<tool_call>{\"name\": \"now\", \"arguments\": {}}",
        &["</tool_call>", "\n</tool_call>"],
    ),
    (
        "command-r7b",
        "<|START_ACTION|>[{\"tool_name\": \"now\", \"parameters\": {}}]",
        &["<|END_ACTION|>"],
    ),
    (
        "phi",
        "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]",
        &["<|/tool_call|>"],
    ),
    ("gemma", "<|tool_call>call:now{}", &["<tool_call|>"]),
    (
        "function-gemma",
        "<start_function_call>call:now{}",
        &["<end_function_call>"],
    ),
    ("lfm2", "<|tool_call_start|>[now()]", &["<|tool_call_end|>"]),
];

#[test]
fn a_call_ends_with_a_mark_and_is_read_without_it() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    let now = || vec![("now".to_owned(), json!({}))];
    for &(name, call, ends) in ENDS {
        for &end in ends {
            let mut walk = walk(name, &tokenizer, &compiler, &ToolChoice::Auto, false, 1).unwrap();
            walk.write(call);
            assert_eq!(String::from_utf8_lossy(&walk.text), call, "{name}");
            let allowed = walk.allowed();
            assert!(!allowed.contains(&256), "{name}: the answer ends without a mark");
            assert!(!allowed.contains(&u32::from(b'X')), "{name}: text follows");
            walk.write(end);
            let whole = format!("{call}{end}");
            assert_eq!(String::from_utf8_lossy(&walk.text), whole, "{name}");
            assert!(walk.allowed().contains(&256), "{name}: {whole:?}");
            assert_eq!(read(name, &whole), (now(), String::new()), "{name}");
            // Text of a model without a mask.
            let (calls, text) = read(name, &format!("{whole}\nSo."));
            assert_eq!((calls, text.trim()), (now(), "So."), "{name}");
        }
        assert_eq!(read(name, call), (now(), String::new()), "{name}");
        let (calls, text) = read(name, &format!("{call}\nSo."));
        assert_eq!((calls, text.trim()), (now(), "So."), "{name}");
    }
}

#[test]
fn a_required_call_ends_as_templates_write_it() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    for (name, call, end) in [
        (
            "deepseek-v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}",
            "\n```<｜tool▁call▁end｜>",
        ),
        (
            "deepseek-v3.1",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}",
            "<｜tool▁call▁end｜>",
        ),
    ] {
        let mut walk = walk(name, &tokenizer, &compiler, &ToolChoice::Required, true, 1).unwrap();
        walk.write(&format!("{call}<｜tool▁calls▁end｜>"));
        assert_eq!(String::from_utf8_lossy(&walk.text), call, "{name}");
        walk.write(&format!("{end}<｜tool▁calls▁end｜>"));
        let whole = format!("{call}{end}<｜tool▁calls▁end｜>");
        assert_eq!(String::from_utf8_lossy(&walk.text), whole, "{name}");
    }
}

#[test]
fn a_call_without_a_mark_keeps_the_models_own_key() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    for key in ["arguments", "parameters"] {
        let mut walk = walk("llama", &tokenizer, &compiler, &ToolChoice::Auto, false, 1).unwrap();
        let call = format!("{{\"name\": \"now\", \"{key}\": {{}}}}");
        walk.write(&call);
        assert_eq!(String::from_utf8_lossy(&walk.text), call);
    }
}

fn opener(name: &str) -> String {
    let tools = ToolSet::from_openai(&tools());
    let controls = ControlTokens::default();
    let form = super::Form {
        format: &format(name),
        controls: &controls,
        is_auto: true,
        is_single: false,
        has_strict: false,
        opens_head: false,
    };
    assert!(!tools.is_empty());
    form.marks(&[])[0].text.clone()
}

#[test]
fn what_a_format_has_no_words_for_is_refused_by_name_or_left_to_the_model() {
    let controls = ControlTokens::default();
    let entangled = |strict: bool| {
        ToolSet::from_openai(&json!([{"function": {"name": "f", "strict": strict,
            "parameters": {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}}}}]))
    };
    let glm = format("glm");
    let strict = glm.constraint(&entangled(true), &ToolChoice::Auto, false, &controls, false);
    let refused = strict.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "calls in the format `glm` cannot be held to the schema of `f`: `format` of a text cannot be expressed in this format"
    );
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        assert!(
            glm.constraint(&entangled(false), &choice, false, &controls, false)
                .is_ok()
        );
    }
    assert!(
        format("hermes")
            .constraint(&entangled(true), &ToolChoice::Required, false, &controls, false)
            .is_ok()
    );
}

/// Returns a tool `name` with these properties.
fn tool(name: &str, strict: bool, parameters: &Value) -> Value {
    json!({"function": {"name": name, "strict": strict, "parameters": parameters}})
}

fn constraint_of(name: &str, tools: &Value, choice: &ToolChoice) -> Result<Constraint, CallFormError> {
    let tools = ToolSet::from_openai(tools);
    format(name).constraint(&tools, choice, false, &ControlTokens::default(), false)
}

#[test]
fn definitions_and_rules_have_a_bound() {
    let mut properties = serde_json::Map::new();
    for idx in 0..10 {
        properties.insert(format!("p{idx}"), json!({"$ref": "#/$defs/d"}));
    }
    let large = json!({"type": "object", "properties": properties,
        "$defs": {"d": {"type": "integer", "description": "x".repeat(300_000)}}});
    let required = &ToolChoice::Required;
    let refused = constraint_of("glm", &json!([tool("f", true, &large)]), required).unwrap_err();
    assert_eq!(
        refused.reason,
        "its arguments with the definitions they refer to take more than 1 MiB"
    );
    assert!(constraint_of("glm", &json!([tool("f", false, &large)]), required).is_ok());
    let long = json!({"type": "object", "properties": {
        "n": {"type": "integer", "description": "x".repeat(900_000)}}});
    let tools: Vec<Value> = (0..6).map(|idx| tool(&format!("f{idx}"), true, &long)).collect();
    let refused = constraint_of("glm", &Value::from(tools), required).unwrap_err();
    assert_eq!(refused.reason, "the rules of all tools take more than 4 MiB");
}

#[test]
fn names_that_no_parser_reads_are_refused() {
    let long = "n".repeat(257);
    let named = json!([tool(&long, true, &json!({"type": "object"}))]);
    let refused = constraint_of("glm", &named, &ToolChoice::Required).unwrap_err();
    assert_eq!(refused.reason, "its name takes more than 256 bytes");
    let keyed = json!({"type": "object", "properties": {long: {"type": "integer"}}});
    let refused = constraint_of("glm", &json!([tool("f", true, &keyed)]), &ToolChoice::Required).unwrap_err();
    assert_eq!(
        refused.reason,
        "the name of an argument takes more than 256 bytes"
    );
}

#[test]
fn slashes_of_a_pattern_do_not_end_it() {
    for pattern in ["^a/b$", r"^a\/b$"] {
        let schema = json!({"type": "string", "pattern": pattern});
        let body = super::bare::text(
            &schema,
            super::Hold::Exact,
            &["<"],
            &crate::constraint::Document::of(&Value::Null),
        )
        .unwrap();
        assert!(body.contains(r"& /(?:a\/b)/ &"), "{body}");
    }
    let schema = json!({"type": "string", "pattern": r"^a\\/b$"});
    let body = super::bare::text(
        &schema,
        super::Hold::Exact,
        &["<"],
        &crate::constraint::Document::of(&Value::Null),
    )
    .unwrap();
    assert!(body.contains(r"& /(?:a\\\/b)/ &"), "{body}");
}

#[test]
fn arguments_without_names_are_not_held_to_where_names_are_written() {
    let open = [
        json!({"type": "object", "additionalProperties": true}),
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
    ];
    for (parameters, name) in open.iter().flat_map(|open| [(open, "glm"), (open, "gemma")]) {
        for choice in [ToolChoice::Auto, ToolChoice::Required] {
            let tools = json!([tool("f", true, parameters)]);
            let refused = constraint_of(name, &tools, &choice).unwrap_err();
            assert_eq!(refused.reason, "it takes arguments that it does not name");
            let tools = json!([tool("f", false, parameters)]);
            assert!(constraint_of(name, &tools, &choice).is_ok());
        }
        // Next to a shape the answer is one or the other.
        let tools = json!([tool("f", false, parameters)]);
        let calls = constraint_of(name, &tools, &ToolChoice::Auto).unwrap();
        assert!(Constraint::json_object().or_calls(&calls).is_some(), "{name}");
    }
}

#[test]
fn a_schema_without_words_relaxes_its_own_tool_alone() {
    let dated = json!({"type": "object", "properties": {"a": {"type": "string", "format": "date"}}});
    let bounded = json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 14}}});
    let tools = json!([tool("f", false, &dated), tool("g", false, &bounded)]);
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        let constraint = constraint_of("glm", &tools, &choice).unwrap();
        assert!(format!("{constraint:?}").contains("maximum"), "{constraint:?}");
        assert_eq!(constraint.is_optional(), choice == ToolChoice::Auto);
    }
}

#[test]
fn values_of_which_nothing_is_said_can_be_written_between_marks() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    let properties = json!({"o": {"type": "object"}, "l": {"type": "array"}, "v": {},
        "m": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["o", "l", "v", "m"],
        "additionalProperties": false});
    for (name, mark, strict) in [
        ("gemma", "<|\"|>", true),
        ("gemma", "<|\"|>", false),
        ("function-gemma", "<escape>", true),
    ] {
        let required = &ToolChoice::Required;
        let tools = json!([tool("f", strict, &parameters)]);
        let mut walk = walk_of(&tools, name, &tokenizer, &compiler, required, true, 1).unwrap();
        let text = format!("{mark}t{mark}");
        let call = format!(
            "{}call:f{{o:{{x:1,long key:[{text},{{}},null]}},l:[{text},-2.5,[true]],v:{{k:{text}}},m:{{n:3,on:true}}}}",
            opener(name)
        );
        walk.write(&call);
        assert_eq!(String::from_utf8_lossy(&walk.text), call, "{name}");
    }
    let tools = json!([tool("f", true, &parameters)]);
    let required = &ToolChoice::Required;
    let mut walk = walk_of(&tools, "gemma", &tokenizer, &compiler, required, true, 1).unwrap();
    let begun = format!("{}call:f{{o:{{}},l:[],v:1,m:{{", opener("gemma"));
    walk.write(&format!("{begun}n:t"));
    assert_eq!(
        String::from_utf8_lossy(&walk.text),
        format!("{begun}n:"),
        "a member that has a name"
    );
}

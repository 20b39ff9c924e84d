//! Answers that are either calls or a text of a shape. Invariant: both occur in every format.

use super::{
    CallFormError, Constraint, ConstraintCompiler, ControlTokens, FORMATS, ToolChoice, ToolSet, Value, Walk,
    check_arguments, format, json, opener, opens_head, parser, read, read_with, tokenizer, tools, walk_along,
};
use crate::constraint::Segment;

const PERSON: &str = "{\"name\": \"weather\", \"age\": 7}";

fn person() -> Constraint {
    Constraint::json_schema(json!({"type": "object", "properties": {
        "name": {"enum": ["Ada", "weather"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["name", "age"], "additionalProperties": false}))
}

fn calls_of(name: &str, tools: &Value, controls: &ControlTokens) -> Result<Constraint, CallFormError> {
    let tools = ToolSet::from_openai(tools);
    format(name).constraint(&tools, &ToolChoice::Auto, false, controls, opens_head(name))
}

/// Walks through an answer of a format that is either; in formats with channels its reasoning ends in the final channel.
fn either<'t>(
    name: &str,
    shape: Constraint,
    tokenizer: &'t crate::Tokenizer,
    compiler: &ConstraintCompiler,
) -> Walk<'t> {
    let calls = calls_of(name, &tools(), &ControlTokens::of(tokenizer)).unwrap();
    let mut either = shape.or_calls(&calls).unwrap_or_else(|| panic!("{name}"));
    if name == "harmony" {
        either = either.begins_after("<|channel|>final<|message|>");
    }
    walk_along(&either, name, tokenizer, compiler, 5)
}

fn n_tokens(controls: &ControlTokens, text: &str) -> usize {
    let of = |segment: &Segment<'_>| match segment {
        Segment::Text(text) => text.len(),
        Segment::Control(_) => 1,
    };
    controls.split(text).iter().map(of).sum()
}

#[test]
fn an_answer_is_a_call_or_has_the_shape_in_every_format() {
    let tokenizer = tokenizer();
    let controls = ControlTokens::of(&tokenizer);
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    for row in FORMATS {
        let mut walk = either(row.name, person(), &tokenizer, &compiler);
        assert!(
            !walk.allowed().contains(&256),
            "{}: nothing is no answer",
            row.name
        );
        let shaped = match row.name {
            "harmony" => format!("<|channel|>final<|message|>{PERSON}"),
            _ => PERSON.to_owned(),
        };
        walk.write(&shaped);
        assert_eq!(String::from_utf8_lossy(&walk.text), shaped, "{}", row.name);
        assert!(
            walk.matcher.is_complete() || walk.allowed() == [256],
            "{}",
            row.name
        );
        let (calls, text) = read(row.name, &shaped);
        assert_eq!((calls.len(), text.as_str()), (0, PERSON), "{}", row.name);

        // The same sample taken back to its beginning can be a call.
        walk.matcher.rollback(n_tokens(&controls, &shaped)).unwrap();
        walk.text.clear();
        let begin = match row.name {
            "llama" => "{\"name\": \"weather\", \"parameters\": ".to_owned(),
            "functionary" => "weather\n".to_owned(),
            name => opener(name),
        };
        walk.write(&begin);
        assert_eq!(String::from_utf8_lossy(&walk.text), begin, "{}", row.name);
        if walk.finish() {
            let answer = String::from_utf8(walk.text).expect("UTF-8");
            let (calls, _) = read(row.name, &answer);
            assert!(!calls.is_empty(), "{}: {answer:?}", row.name);
            for (called, arguments) in &calls {
                check_arguments(called, arguments);
            }
        }
    }
}

#[test]
fn marks_of_calls_inside_a_shape_are_text() {
    // The excluded formats have no marks, or marks around each part of an answer.
    let has_marks = |name| !["harmony", "llama", "functionary"].contains(&name);
    for row in FORMATS.iter().filter(|row| has_marks(row.name)) {
        let inside = format!("{{\"note\": \"{}weather\"}}", opener(row.name));
        let (calls, text) = read_with(parser(row.name).calls_at_start(), row.name, &inside);
        assert_eq!((calls.len(), text.as_str()), (0, inside.as_str()), "{}", row.name);
    }
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    let (calls, text) = read_with(
        parser("hermes").calls_at_start(),
        "hermes",
        &format!("{call}\n{call}"),
    );
    assert_eq!(
        (calls.len(), text.trim()),
        (2, ""),
        "calls at the start are calls"
    );
}

#[test]
fn no_shape_loosens_the_schema_of_a_tool() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    for (name, begin) in [
        ("llama", "{ \"name\": \"now\", \"parameters\": {"),
        ("hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {"),
        ("functionary", "now\n{"),
    ] {
        for shape in [Constraint::json_object(), Constraint::regex("(?s:.*)")] {
            let mut walk = either(name, shape, &tokenizer, &compiler);
            walk.write(begin);
            walk.write("\"a");
            assert_eq!(String::from_utf8_lossy(&walk.text), begin, "{name}");
        }
    }
}

#[test]
fn calls_that_cannot_be_told_or_held_stand_beside_no_shape() {
    let controls = ControlTokens::default();
    let tool = |strict: bool, open: bool| {
        json!([{"function": {"name": "f", "strict": strict, "parameters": {"type": "object",
            "properties": {"a": {"type": "integer"}}, "additionalProperties": open}}}])
    };
    let either = |name: &str, tools: Value| {
        let calls = calls_of(name, &tools, &controls).unwrap();
        person().or_calls(&calls).is_some()
    };
    assert!(either("llama", tool(false, false)));
    assert!(!either("llama", tool(true, false)));
    assert!(either("glm", tool(true, false)));
    assert!(either("glm", tool(false, true)));
    // No parser reads back such a long name.
    let unreadable = json!([{"function": {"name": "n".repeat(257), "parameters": {"type": "object"}}}]);
    assert!(!either("glm", unreadable));
}

#[test]
fn space_at_the_beginning_is_no_sign_of_a_call() {
    let tokenizer = tokenizer();
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    for row in FORMATS.iter().filter(|row| row.name != "harmony") {
        let mut walk = either(row.name, person(), &tokenizer, &compiler);
        let allowed = walk.allowed();
        assert!(allowed.contains(&u32::from(b'{')), "{}", row.name);
        for space in b" \n\t\r" {
            assert!(!allowed.contains(&u32::from(*space)), "{}", row.name);
        }
    }
}

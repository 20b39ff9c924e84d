//! Tests tokens that run past a mark of a call.
//!
//! They need words in the vocabulary. Invariant: a token is allowed if its letters are, and is read like them.

use super::{CONTROLS, ConstraintCompiler, ToolChoice, Value, Walk, json, tokenizer_with, tool, walk_of};
use crate::Tokenizer;

/// Returns a tool without arguments.
fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {}, "additionalProperties": false});
    json!([tool("f", true, &parameters)])
}

fn walk<'t>(name: &str, tokenizer: &'t Tokenizer, compiler: &ConstraintCompiler) -> Walk<'t> {
    let auto = &ToolChoice::Auto;
    walk_of(&tools(), name, tokenizer, compiler, auto, false, 1).unwrap()
}

/// Returns the id of the word at an index.
fn word(idx: usize) -> u32 {
    (258 + CONTROLS.len() + idx) as u32
}

#[test]
fn a_token_that_runs_past_a_mark_is_text_where_no_call_begins_so() {
    let tokenizer = tokenizer_with(&["{}", "[["]);
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    for word in [word(0), word(1)] {
        let mut walk = walk("llama", &tokenizer, &compiler);
        assert!(walk.allowed().contains(&word));
        walk.take(word);
        walk.write(" is text");
        assert!(String::from_utf8_lossy(&walk.text).ends_with(" is text"));
        assert!(walk.allowed().contains(&256), "text may end");
        walk.matcher.rollback(9).unwrap();
        walk.text.clear();
        walk.write("{");
        assert!(!walk.allowed().contains(&256), "a call that began ends");
    }
}

#[test]
fn a_token_may_end_a_call_and_hold_what_follows() {
    // Each text has a token that is the part between the bars.
    for (name, text) in [
        ("mistral", "[TOOL_CALLS]f[ARGS]{|}[| is text"),
        ("functionary", "f\n|{}>>|>f\n{}"),
        ("functionary", "f\n{|}>>>f\n{|} is text"),
        ("functionary", "f\n{|}>>>f\n{}|>>>f\n{}"),
        ("functionary", "f\n{|}>>>f\n{}>>>f|\n{} is text"),
        (
            "qwen3-coder",
            "<function=f>\n</functi|on><function=|f>\n</function>",
        ),
        (
            "qwen3-coder",
            "<function=f>\n|</function><function=f>\n</function>|\n",
        ),
        ("qwen3-coder", "<function=f>\n</function|>\nFor <b|> and more"),
        (
            "llama",
            "{\"name\": \"f\", \"parameters\": {}|}; {\"name|\": \"f\", \"parameters\": {}}",
        ),
    ] {
        let parts: Vec<&str> = text.split('|').collect();
        let [before, long, behind] = parts[..] else {
            panic!("{text} has other bars");
        };
        let tokenizer = tokenizer_with(&[long]);
        let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
        let mut walk = walk(name, &tokenizer, &compiler);
        let whole = parts.concat();
        walk.write(before);
        // The second round follows a rollback into the first call.
        for _ in 0..2 {
            assert_eq!(String::from_utf8_lossy(&walk.text), before, "{name}: {text}");
            assert!(walk.allowed().contains(&word(0)), "{name}: {text}");
            walk.take(word(0));
            walk.write(behind);
            assert_eq!(String::from_utf8_lossy(&walk.text), whole, "{name}: {text}");
            assert!(walk.allowed().contains(&256), "{name}: {text} may end");
            walk.matcher.rollback(behind.len() + 1).unwrap();
            walk.text.truncate(before.len());
        }
        // The mask after the long token holds the next call to its form.
        if behind.starts_with("\": \"f") {
            walk.take(word(0));
            walk.write("\": \"g");
            assert!(
                String::from_utf8_lossy(&walk.text).ends_with("name\": \""),
                "{name}: {text}"
            );
        }
    }
}

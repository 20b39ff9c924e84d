//! Tests JSON escapes: an escape that may begin can be finished, and counts as the unescaped character.

use serde_json::{Value, json};

use super::{Constraint, ConstraintCompiler, bytes_tokenizer, tokenizer_with};
use crate::constraint::ConstraintMatcher;

fn allows(matcher: &mut ConstraintMatcher, byte: u32) -> bool {
    let mut mask = [0; 9];
    matcher.mask(&mut mask).unwrap();
    mask[byte as usize / 32] >> (byte % 32) & 1 == 1
}

/// Writes a text as far as the mask allows it; returns the written part.
fn written(matcher: &mut ConstraintMatcher, text: &str) -> String {
    let mut bytes = Vec::new();
    for byte in text.bytes() {
        if !allows(matcher, u32::from(byte)) {
            break;
        }
        matcher.commit(u32::from(byte)).unwrap();
        bytes.push(byte);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn object(property: &Value) -> Constraint {
    Constraint::json_schema(
        json!({"type": "object", "properties": {"s": property}, "required": ["s"], "additionalProperties": false}),
    )
}

#[test]
fn every_escape_that_may_begin_may_be_finished() {
    let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
    let texts = [
        "caf\\u00e9",
        "\\u65e5",
        "\\ud83d\\ude00!",
        "a\\/b",
        "\\/",
        "https:\\/\\/a\\/",
        "a\\nb \\\"q\\\" \\\\",
        "a\\u0001b",
    ];
    for constraint in [
        object(&json!({"type": "string"})),
        object(&json!({"type": "string", "minLength": 1, "maxLength": 40})),
        object(&json!({"anyOf": [{"type": "string"}, {"type": "null"}]})),
        object(&json!({})),
        Constraint::json_object(),
    ] {
        let compiled = compiler.compile(&constraint).unwrap();
        for text in texts {
            let mut matcher = compiled.matcher(&[256]);
            let whole = format!("{{\"s\": \"{text}\"}}");
            assert_eq!(written(&mut matcher, &whole), whole, "{constraint:?}");
            assert!(matcher.is_complete() || allows(&mut matcher, 256));
            // After a rollback anywhere, the same tokens are accepted again.
            for n_back in 1..whole.len() {
                matcher.rollback(n_back).unwrap();
                let rest = &whole[whole.len() - n_back..];
                assert_eq!(written(&mut matcher, rest), rest, "{n_back} back in {whole}");
            }
        }
    }
}

/// Checks that each part of `text` is allowed as one token, and that the mask is the same again after a rollback.
#[track_caller]
fn check_every_token(constraint: &Constraint, text: &str) {
    let parts = |at: usize| (at + 2..=text.len().min(at + 7)).map(move |end| &text[at..end]);
    let mut words: Vec<String> = (0..text.len())
        .flat_map(|at| parts(at).map(str::to_owned))
        .collect();
    words.sort();
    words.dedup();
    let compiler = ConstraintCompiler::new(&tokenizer_with(&words)).unwrap();
    let compiled = compiler.compile(constraint).unwrap();
    let mut mask = vec![0; (258 + words.len()).div_ceil(32)];
    let mut allows = |matcher: &mut ConstraintMatcher, id: usize| {
        matcher.mask(&mut mask).unwrap();
        mask[id / 32] >> (id % 32) & 1 == 1
    };
    let mut matcher = compiled.matcher(&[256]);
    for at in 0..text.len() {
        for part in parts(at) {
            let id = 258 + words.iter().position(|word| word == part).unwrap();
            assert!(
                allows(&mut matcher, id),
                "{part} is not allowed after {}",
                &text[..at]
            );
            matcher.commit(id as u32).unwrap();
            let rest = &text.as_bytes()[at + part.len()..];
            for (idx, &byte) in rest.iter().enumerate() {
                assert!(
                    allows(&mut matcher, byte as usize),
                    "{} is not allowed after the token {part}",
                    String::from_utf8_lossy(&rest[idx..])
                );
                matcher.commit(u32::from(byte)).unwrap();
            }
            matcher.rollback(rest.len() + 1).unwrap();
        }
        let byte = text.as_bytes()[at];
        assert!(allows(&mut matcher, byte as usize));
        matcher.commit(u32::from(byte)).unwrap();
    }
}

#[test]
fn an_escape_is_finished_by_tokens_that_hold_more() {
    let slashes = r#"{"s": "\/a\\\/\/b\n\/\"\/"}"#;
    for property in [
        json!({"type": "string"}),
        json!({"type": "string", "minLength": 10}),
        json!({}),
    ] {
        check_every_token(&object(&property), slashes);
    }
    for (property, text) in [
        (
            json!({"type": "string", "pattern": "^[a-z/:.]+$"}),
            r#"{"s": "https:\/\/a.b\/c"}"#,
        ),
        (json!({"enum": ["a/b", "a//", "c"]}), r#"{"s": "a\/\/"}"#),
        (json!({"const": "//"}), r#"{"s":"\/\/"}"#),
    ] {
        check_every_token(&object(&property), text);
    }
}

#[test]
fn a_token_with_digits_begins_no_escape_that_cannot_be_finished() {
    let words = ["\\u", "\"\\u", "u0", "a\\u00"].map(str::to_owned);
    let compiler = ConstraintCompiler::new(&tokenizer_with(&words)).unwrap();
    let allowed = |property: &Value, text: &str, word: usize| {
        let mut matcher = compiler.compile(&object(property)).unwrap().matcher(&[256]);
        assert_eq!(written(&mut matcher, text), text);
        allows(&mut matcher, 258 + word as u32)
    };
    for (property, is_any) in [
        (json!({"type": "string", "pattern": "^(?s:.)*$"}), false),
        (json!({"type": "string"}), true),
    ] {
        for (text, word) in [
            ("{\"s\": \"a", 0),
            ("{\"s\": ", 1),
            ("{\"s\": \"\\", 2),
            ("{\"s\": \"", 3),
        ] {
            assert_eq!(
                allowed(&property, text, word),
                is_any,
                "{property}: {} after {text}",
                words[word]
            );
        }
    }
}

#[test]
fn slashes_of_patterns_and_lists_may_be_escaped() {
    let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
    for (property, text) in [
        (json!({"type": "string", "pattern": "^[a-z/]+$"}), "a\\/b"),
        (json!({"enum": ["a/b", "c"]}), "a\\/b"),
        (json!({"const": "//"}), "\\/\\/"),
        (json!({"type": "string", "format": "uri"}), "https:\\/\\/a.b\\/c"),
    ] {
        let mut matcher = compiler.compile(&object(&property)).unwrap().matcher(&[256]);
        let whole = format!("{{\"s\": \"{text}\"}}");
        assert_eq!(written(&mut matcher, &whole), whole, "{property}");
    }
    // Tokens with an escaped slash are not slashes elsewhere.
    let mut matcher = compiler
        .compile(&object(&json!({"const": "ab"})))
        .unwrap()
        .matcher(&[256]);
    assert_eq!(written(&mut matcher, "{\"s\": \"a\\/"), "{\"s\": \"a");
    let mut matcher = compiler
        .compile(&Constraint::regex("\"a/b\""))
        .unwrap()
        .matcher(&[256]);
    assert_eq!(
        written(&mut matcher, "\"a\\/b\""),
        "\"a",
        "a regular expression is no JSON"
    );
}

#[test]
fn an_escape_with_digits_begins_where_all_of_them_may_follow() {
    let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
    let mut matcher = compiler
        .compile(&object(&json!({"type": "string", "pattern": "^(?s:.)*$"})))
        .unwrap()
        .matcher(&[256]);
    assert_eq!(written(&mut matcher, "{\"s\": \"a\\u"), "{\"s\": \"a\\");
    assert_eq!(written(&mut matcher, "n\\\"é"), "n\\\"é");
}

#[test]
fn references_of_every_form_are_followed() {
    let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
    for (reference, more) in [
        ("#/$defs/a~1b", json!({"a/b": {"const": "x"}})),
        ("#/$defs/a~0b", json!({"a~b": {"const": "x"}})),
        ("#/$defs/a%20b", json!({"a b": {"const": "x"}})),
        ("#here", json!({"a": {"$anchor": "here", "const": "x"}})),
        ("other", json!({"a": {"$id": "other", "const": "x"}})),
        ("https://example.com/s#/$defs/a", json!({"a": {"const": "x"}})),
    ] {
        let schema = json!({"$id": "https://example.com/s", "type": "object", "properties": {"s": {"$ref": reference}}, "required": ["s"],
            "additionalProperties": false, "$defs": more});
        let compiled = compiler.compile(&Constraint::json_schema(&schema));
        let mut matcher = compiled
            .unwrap_or_else(|error| panic!("{reference}: {error}"))
            .matcher(&[256]);
        assert_eq!(
            written(&mut matcher, "{\"s\": \"x\"}"),
            "{\"s\": \"x\"}",
            "{reference}"
        );
        let mut matcher = compiler
            .compile(&Constraint::json_schema(&schema))
            .unwrap()
            .matcher(&[256]);
        assert_eq!(written(&mut matcher, "{\"s\": \"y"), "{\"s\": \"", "{reference}");
    }
}

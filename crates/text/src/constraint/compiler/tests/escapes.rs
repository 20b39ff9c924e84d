//! Tests JSON escapes: an escape that may begin can be finished, and counts as the character that it stands for.

use serde_json::{Value, json};

use super::{Constraint, ConstraintCompiler, bytes_tokenizer};
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

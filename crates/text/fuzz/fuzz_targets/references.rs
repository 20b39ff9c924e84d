//! Fuzzes grammars and schemas whose rules refer to each other at random, with up to some thousand rules in every language. A compiler must
//! neither overflow its stack nor continue after its answer.
//!
//! ```text
//! cd crates/text && mkdir -p fuzz/corpus/references
//! cargo +nightly fuzz run references fuzz/corpus/references -- -max_total_time=600 -timeout=20
//! ```
#![no_main]

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use tokenmill_gguf::{Metadata, StringArray};
use tokenmill_text::{
    Tokenizer,
    constraint::{Constraint, ConstraintCompiler},
};

/// Vocabulary of all bytes and an end token.
static COMPILER: LazyLock<ConstraintCompiler> = LazyLock::new(|| {
    let mut metadata = Metadata::new();
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = bytes.chain(["<end>".to_owned(), "<unk>".to_owned()]);
    let mut kinds = vec![6; 256];
    kinds.extend([3, 2]);
    metadata.insert("tokenizer.ggml.model", "llama").unwrap();
    metadata
        .insert("tokenizer.ggml.tokens", tokens.collect::<StringArray>())
        .unwrap();
    metadata.insert("tokenizer.ggml.scores", vec![0f32; 258]).unwrap();
    metadata.insert("tokenizer.ggml.token_type", kinds).unwrap();
    metadata.insert("tokenizer.ggml.eos_token_id", 256u32).unwrap();
    metadata
        .insert("tokenizer.ggml.unknown_token_id", 257u32)
        .unwrap();
    ConstraintCompiler::new(&Tokenizer::from_gguf(&metadata).unwrap()).unwrap()
});

const BODIES: [&str; 8] = [
    "{}",
    "{} \"a\"",
    "\"a\" {}",
    "({})*",
    "(\"a\" ({} | \"c\"))+",
    "{}?",
    "((({})))",
    "\"x\" {} \"y\" {}",
];

const SCHEMAS: [&str; 6] = [
    r#"{"$ref": "TO"}"#,
    r#"{"anyOf": [{"$ref": "TO"}, {"type": "null"}]}"#,
    r#"{"allOf": [{"$ref": "TO"}, {"type": "object"}]}"#,
    r#"{"type": "object", "properties": {"a": {"$ref": "TO"}}}"#,
    r#"{"items": {"$ref": "TO"}}"#,
    r#"{"$ref": "TO", "minimum": 3}"#,
];

fuzz_target!(|input: &[u8]| {
    let [language, scale, size, rest @ ..] = input else {
        return;
    };
    let n = 1 + usize::from(*size) * [1, 1, 8, 80][usize::from(*scale) % 4];
    let byte = |at: usize| rest.get(at % rest.len().max(1)).copied().map_or(1, usize::from);
    // Mostly the next rule or a nearby one, sometimes any.
    let to = |idx: usize, at: usize| match byte(at) {
        step @ 0..200 => (idx + 1 + step % 3).min(n - 1),
        any => any * 7919 % n,
    };
    let constraint = if language % 3 == 2 {
        let definitions = (0..n).map(|idx| {
            let text = SCHEMAS[byte(3 * idx) % SCHEMAS.len()]
                .replace("TO", &format!("#/$defs/a{}", to(idx, 3 * idx + 1)));
            (format!("a{idx}"), serde_json::from_str(&text).expect("a schema"))
        });
        let definitions: Map<String, Value> = definitions.collect();
        Constraint::json_schema(json!({"$defs": definitions, "$ref": "#/$defs/a0"}))
    } else {
        let (first, define) = [("root", "::="), ("start", ":")][usize::from(language % 3)];
        let mut text = format!("{first} {define} r0\n");
        for idx in 0..n {
            let body =
                BODIES[byte(3 * idx) % BODIES.len()].replace("{}", &format!("r{}", to(idx, 3 * idx + 1)));
            text.push_str(&format!("r{idx} {define} {body} | \"e\"\n"));
        }
        if language % 3 == 0 {
            Constraint::gbnf(text)
        } else {
            Constraint::lark(text)
        }
    };
    let begun = Instant::now();
    let _ = COMPILER.compile(&constraint);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
});

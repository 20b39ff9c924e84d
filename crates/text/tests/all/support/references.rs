//! Grammars, schemas and tools whose rules refer to each other at random, in every language, of up to some thousand rules.
//!
//! The property test and the fuzz target share them. Invariant: the output depends only on the bytes.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use tokenmill_gguf::{Metadata, StringArray};
use tokenmill_text::{
    Tokenizer,
    calls::{ReplyFormat, ToolChoice, ToolSet},
    constraint::{Constraint, ConstraintCompiler, ControlTokens},
};

/// Compiler for a vocabulary of all bytes and an end token.
pub(crate) static COMPILER: LazyLock<ConstraintCompiler> = LazyLock::new(|| {
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

/// Bodies of rules; `{}` stands for another rule.
const BODIES: [&str; 10] = [
    "{}",
    "{} \"a\"",
    "\"a\" {}",
    "({})*",
    "(\"a\" ({} | \"c\"))+",
    "{}?",
    "((({})))",
    "\"x\" {} \"y\" {}",
    "{} {} {}",
    "({} | {} \"b\")",
];

/// Schemas; `TO` stands for another one.
const SCHEMAS: [&str; 12] = [
    r#"{"$ref": "TO"}"#,
    r#"{"anyOf": [{"$ref": "TO"}, {"type": "null"}]}"#,
    r#"{"oneOf": [{"$ref": "TO"}, {"const": 1}]}"#,
    r#"{"allOf": [{"$ref": "TO"}, {"type": "object"}]}"#,
    r#"{"allOf": [{"$ref": "TO"}, {"$ref": "TO"}]}"#,
    r#"{"type": "object", "properties": {"a": {"$ref": "TO"}}}"#,
    r#"{"type": "object", "properties": {"a": {"$ref": "TO"}}, "required": ["a"]}"#,
    r#"{"items": {"$ref": "TO"}}"#,
    r#"{"prefixItems": [{"$ref": "TO"}, {"$ref": "TO"}]}"#,
    r#"{"additionalProperties": {"$ref": "TO"}}"#,
    r#"{"$ref": "TO", "minimum": 3}"#,
    r#"{"patternProperties": {"^a": {"$ref": "TO"}}}"#,
];

/// Reads bytes as choices, again from the front where they end.
struct Choices<'b>(&'b [u8]);

impl Choices<'_> {
    fn at(&self, at: usize) -> usize {
        let byte = self.0.get(at % self.0.len().max(1));
        byte.copied().map_or(1, usize::from)
    }

    /// Chooses the target of a rule: mostly the next one or a nearby one, sometimes any.
    fn target(&self, idx: usize, n: usize) -> usize {
        match self.at(3 * idx + 1) {
            step @ 0..200 => (idx + 1 + step % 3).min(n - 1),
            any => any * 7919 % n,
        }
    }
}

/// Makes a grammar or a schema of bytes; `None` if there are too few.
pub(crate) fn constraint_of(input: &[u8]) -> Option<Constraint> {
    let [language, scale, size, rest @ ..] = input else {
        return None;
    };
    let n = 1 + usize::from(*size) * [1, 1, 8, 80][usize::from(*scale) % 4];
    let choices = Choices(rest);
    Some(match language % 8 {
        0 => Constraint::gbnf(grammar(n, &choices, "root", "::=", "r")),
        1 => Constraint::lark(grammar(n, &choices, "start", ":", "r")),
        2 => Constraint::lark(grammar(n, &choices, "start", ":", "R")),
        3 => Constraint::json_schema(schema(n, &choices, false)),
        4 => Constraint::json_schema(schema(n, &choices, true)),
        5 | 6 => calls(schema(n, &choices, language % 8 == 6), &choices),
        _ => Constraint::lark(format!(
            "start: \"x\" a\na: %json {}\n",
            schema(n, &choices, false)
        )),
    })
}

/// Pieces of chat templates by which formats of calls are recognized, one of each shape.
const FORMATS: [&str; 8] = [
    "<tool_call>",
    "[TOOL_CALLS][ARGS]",
    "<function=<parameter=",
    "<arg_key>",
    "<|tool_call_start|>",
    "<|tool_call>",
    "<|python_tag|>",
    "<|channel|><|message|><|start|>",
];

/// Makes the constraint of calls of a tool with this schema. A format that cannot express it allows any text.
fn calls(mut schema: Value, choices: &Choices<'_>) -> Constraint {
    let kind = choices.at(5);
    schema["type"] = json!("object");
    schema["properties"] = json!({"text": {"$ref": "#/$defs/a0"}, "n": {"type": "integer"}});
    if kind.is_multiple_of(2) {
        schema["required"] = json!(["text"]);
        schema["additionalProperties"] = json!(false);
    }
    let function = json!({"name": "f", "strict": kind % 4 < 2, "parameters": schema});
    let tools = ToolSet::from_openai(&json!([{"type": "function", "function": function}]));
    let format = ReplyFormat::of_template(FORMATS[choices.at(6) % FORMATS.len()]);
    let choice = [ToolChoice::Auto, ToolChoice::Required][kind / 4 % 2].clone();
    let controls = ControlTokens::default();
    format
        .constraint(&tools, &choice, false, &controls, format.has_heads())
        .unwrap_or_else(|_| Constraint::anything())
}

/// Writes a grammar; rules whose name is in capitals are terminals.
fn grammar(n: usize, choices: &Choices<'_>, first: &str, define: &str, name: &str) -> String {
    let mut text = format!("{first} {define} {name}0\n");
    for idx in 0..n {
        let target = format!("{name}{}", choices.target(idx, n));
        let body = BODIES[choices.at(3 * idx) % BODIES.len()].replace("{}", &target);
        text.extend([&format!("{name}{idx} {define} "), body.as_str(), " | \"e\"\n"]);
    }
    text
}

/// Makes a schema of definitions that refer to each other by pointers, or by anchors and identifiers.
fn schema(n: usize, choices: &Choices<'_>, by_name: bool) -> Value {
    let definitions = (0..n).map(|idx| {
        let target = choices.target(idx, n);
        let reference = match (by_name, choices.at(3 * idx + 2) % 3) {
            (false, _) | (true, 0) => format!("#/$defs/a{target}"),
            (true, 1) => format!("#n{target}"),
            (true, _) => format!("i{target}"),
        };
        let text = SCHEMAS[choices.at(3 * idx) % SCHEMAS.len()].replace("TO", &reference);
        let mut schema: Value = serde_json::from_str(&text).expect("a schema");
        match (by_name, choices.at(3 * idx + 5) % 3) {
            (true, 1) => schema["$anchor"] = json!(format!("n{idx}")),
            (true, 2) => schema["$id"] = json!(format!("i{idx}")),
            _ => {}
        }
        (format!("a{idx}"), schema)
    });
    let definitions: Map<String, Value> = definitions.collect();
    json!({"$defs": definitions, "$ref": "#/$defs/a0"})
}

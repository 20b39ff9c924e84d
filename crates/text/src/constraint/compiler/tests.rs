//! Constraints compiled and followed, over a vocabulary of single bytes.

mod escapes;

use serde_json::{Value, json};
use tokenmill_gguf::{Metadata, StringArray};

use super::*;
use crate::constraint::{CallGrammar, places::MAX_RUNNING};

/// Builds a vocabulary of all bytes, then the end of a text.
pub(in crate::constraint) fn bytes_tokenizer() -> Tokenizer {
    tokenizer_with(&[])
}

/// Builds such a vocabulary with words after it, the first of which is token 258.
fn tokenizer_with(words: &[String]) -> Tokenizer {
    let mut metadata = Metadata::new();
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = bytes
        .chain(["<end>".to_owned(), "<unk>".to_owned()])
        .chain(words.iter().map(|word| word.replace(' ', "▁")));
    let mut kinds = vec![6; 256];
    kinds.extend([3, 2]);
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

fn compiler() -> ConstraintCompiler {
    ConstraintCompiler::new(&bytes_tokenizer()).unwrap()
}

fn allowed(matcher: &mut ConstraintMatcher) -> Vec<u32> {
    let mut mask = [0; 9];
    matcher.mask(&mut mask).unwrap();
    (0..288)
        .filter(|id| mask[id / 32] >> (id % 32) & 1 == 1)
        .map(|id| id as u32)
        .collect()
}

fn feed(matcher: &mut ConstraintMatcher, text: &str) {
    for byte in text.bytes() {
        assert!(
            allowed(matcher).contains(&u32::from(byte)),
            "{:?} of {text:?}",
            byte as char
        );
        matcher.commit(u32::from(byte)).unwrap();
    }
}

fn refusal(constraint: &Constraint) -> String {
    let started = Instant::now();
    let refused = compiler().compile(constraint).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(10), "{refused} came late");
    refused.to_string()
}

#[test]
fn the_end_is_allowed_where_the_text_is_complete_and_alone_where_nothing_may_follow() {
    let compiled = compiler().compile(&Constraint::regex("ab?")).unwrap();
    let mut matcher = compiled.matcher(&[256]);
    assert_eq!(allowed(&mut matcher), [u32::from(b'a')]);
    feed(&mut matcher, "a");
    assert_eq!(allowed(&mut matcher), [u32::from(b'b'), 256]);
    assert!(!matcher.is_complete());
    feed(&mut matcher, "b");
    assert!(matcher.is_complete());
    assert_eq!(allowed(&mut matcher), [256]);
}

#[test]
fn a_json_object_is_complete_at_its_bracket() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let mut matcher = compiler()
        .compile(&Constraint::json_schema(&schema))
        .unwrap()
        .matcher(&[256]);
    feed(&mut matcher, "{ \"a\":\n12}");
    assert!(matcher.is_complete());
    let mut any = compiler()
        .compile(&Constraint::json_object())
        .unwrap()
        .matcher(&[256]);
    feed(&mut any, "{\"x\": [1, \"é\", null, {}]}");
    assert!(any.is_complete());
}

#[test]
fn space_between_parts_of_json_has_an_end() {
    let compiled = compiler().compile(&Constraint::json_object()).unwrap();
    for space in [" ".to_owned(), format!("\n\n{}", " ".repeat(20))] {
        let mut matcher = compiled.matcher(&[256]);
        feed(&mut matcher, "{");
        feed(&mut matcher, &space);
        let next = allowed(&mut matcher);
        assert!(
            [b' ', b'\n', b'\t']
                .iter()
                .all(|&byte| !next.contains(&u32::from(byte))),
            "{space:?}"
        );
        assert!(next.contains(&u32::from(b'"')));
    }
}

#[test]
fn one_of_the_choices_and_nothing_else() {
    let compiled = compiler()
        .compile(&Constraint::choice(["yes", "yes/no", "a.b"]))
        .unwrap();
    let mut matcher = compiled.matcher(&[256]);
    assert_eq!(allowed(&mut matcher), [u32::from(b'a'), u32::from(b'y')]);
    feed(&mut matcher, "yes");
    assert_eq!(allowed(&mut matcher), [u32::from(b'/'), 256]);
    feed(&mut matcher, "/no");
    assert!(matcher.is_complete());
}

#[test]
fn a_lark_grammar_is_followed() {
    let grammar = "start: \"<\" word (\",\" word)* \">\"\nword: /[a-z]+/";
    let mut matcher = compiler()
        .compile(&Constraint::lark(grammar))
        .unwrap()
        .matcher(&[256]);
    feed(&mut matcher, "<a,bc>");
    assert!(matcher.is_complete());
}

#[test]
fn before_the_marker_every_text_is_allowed_and_no_end() {
    let constraint = Constraint::regex("[0-9]+").begins_after("</think>");
    let mut matcher = compiler().compile(&constraint).unwrap().matcher(&[256]);
    assert_eq!(allowed(&mut matcher).len(), 257);
    assert!(!allowed(&mut matcher).contains(&256));
    feed(&mut matcher, "1 < 2 </think>");
    assert_eq!(
        allowed(&mut matcher),
        (u32::from(b'0')..=u32::from(b'9')).collect::<Vec<_>>()
    );
    feed(&mut matcher, "42");
    assert!(allowed(&mut matcher).contains(&256));
}

#[test]
fn thoughts_are_optional_where_the_constraint_says_so() {
    let constraint = Constraint::regex("[0-9]+").may_begin_after("<", "</think>");
    let compiled = compiler().compile(&constraint).unwrap();
    let (less, digits) = (u32::from(b'<'), u32::from(b'0')..=u32::from(b'9'));
    let mut thinking = compiled.matcher(&[256]);
    assert_eq!(
        allowed(&mut thinking),
        digits.clone().chain([less]).collect::<Vec<_>>()
    );
    feed(&mut thinking, "<think>what?</think>");
    assert_eq!(allowed(&mut thinking), digits.collect::<Vec<_>>());
    let masks = [allowed(&mut thinking)];
    feed(&mut thinking, "4");
    thinking.rollback(3).unwrap();
    feed(&mut thinking, "k>");
    assert_eq!([allowed(&mut thinking)], masks);
    let mut silent = compiled.matcher(&[256]);
    feed(&mut silent, "42");
    assert!(!allowed(&mut silent).contains(&less));
    // An opening of several tokens allows no choice.
    let constraint = Constraint::regex("[0-9]").may_begin_after("<think>", "</think>");
    let mut silent = compiler().compile(&constraint).unwrap().matcher(&[256]);
    assert!(!allowed(&mut silent).contains(&less));
}

#[test]
fn a_rollback_restores_every_earlier_mask() {
    let constraint = Constraint::regex("ab+c").begins_after("::");
    let mut matcher = compiler().compile(&constraint).unwrap().matcher(&[256]);
    let text = "x::abbc";
    let mut masks = vec![allowed(&mut matcher)];
    for byte in text.bytes() {
        matcher.commit(u32::from(byte)).unwrap();
        masks.push(allowed(&mut matcher));
    }
    for n_back in 0..=text.len() {
        let kept = text.len() - n_back;
        matcher.rollback(n_back).unwrap();
        assert_eq!(allowed(&mut matcher), masks[kept], "{n_back} back");
        for byte in text[kept..].bytes() {
            matcher.commit(u32::from(byte)).unwrap();
        }
    }
    matcher.commit(256).unwrap();
    matcher.rollback(2).unwrap();
    assert_eq!(allowed(&mut matcher), masks[text.len() - 1], "over the end");
    assert!(matcher.rollback(100).is_err());
}

#[test]
fn a_text_without_a_choice_is_spelled_by_its_longest_token() {
    let tokenizer = {
        let mut metadata = Metadata::new();
        let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
        let more = ["<end>", "<unk>", "na", "name", "\"name", "\":"].map(str::to_owned);
        let mut kinds = vec![6; 256];
        kinds.extend([3, 2, 1, 1, 1, 1]);
        let n_vocab = kinds.len();
        let tokens: StringArray = bytes.chain(more).collect();
        metadata.insert("tokenizer.ggml.model", "llama").unwrap();
        metadata.insert("tokenizer.ggml.tokens", tokens).unwrap();
        metadata
            .insert("tokenizer.ggml.scores", vec![0f32; n_vocab])
            .unwrap();
        metadata.insert("tokenizer.ggml.token_type", kinds).unwrap();
        metadata.insert("tokenizer.ggml.eos_token_id", 256u32).unwrap();
        metadata
            .insert("tokenizer.ggml.unknown_token_id", 257u32)
            .unwrap();
        Tokenizer::from_gguf(&metadata).unwrap()
    };
    let constraint = Constraint::regex(r#"\{"name":[0-9]\}"#);
    let compiler = ConstraintCompiler::new(&tokenizer).unwrap();
    let mut matcher = compiler.compile(&constraint).unwrap().matcher(&[256]);
    let mut forced = Vec::new();
    let mut mask = [0; 9];
    loop {
        matcher.mask(&mut mask).unwrap();
        let Some(id) = matcher.forced(&mask) else { break };
        forced.push(id);
        matcher.commit(id).unwrap();
    }
    // A brace, `"name`, `":`, and then a digit.
    assert_eq!(forced, [u32::from(b'{'), 260, 261]);
    matcher.rollback(2).unwrap();
    matcher.mask(&mut mask).unwrap();
    assert_eq!(matcher.forced(&mask), Some(260));
}

#[test]
fn a_token_that_the_mask_forbids_is_an_error() {
    let mut matcher = compiler()
        .compile(&Constraint::regex("ab"))
        .unwrap()
        .matcher(&[256]);
    assert!(matcher.commit(u32::from(b'x')).is_err());
}

#[test]
fn samples_are_apart_and_equal_constraints_are_compiled_once() {
    let compiler = compiler();
    let compiled = compiler.compile(&Constraint::regex("ab")).unwrap();
    let again = compiler
        .compile(&Constraint::regex("ab").begins_after("x"))
        .unwrap();
    let same = |a: &CompiledConstraint, b: &CompiledConstraint| {
        (a.prototype.as_ref().zip(b.prototype.as_ref())).is_some_and(|(a, b)| Arc::ptr_eq(a, b))
    };
    assert!(same(&compiled, &again));
    let other = compiler
        .compile(&Constraint::lark("ab"))
        .map(|other| same(&compiled, &other));
    assert!(!other.unwrap_or(false));
    let (mut one, mut two) = (compiled.matcher(&[256]), compiled.matcher(&[256]));
    feed(&mut one, "ab");
    feed(&mut two, "a");
    assert!(one.is_complete() && !two.is_complete());
    for number in 0..200 {
        compiler
            .compile(&Constraint::regex(format!("a{number}")))
            .unwrap();
    }
    assert_eq!(lock(&compiler.kept).len(), MAX_KEPT);
    assert!(compiler.has(&Constraint::regex("a199")) && compiler.has(&Constraint::anything()));
    assert!(!compiler.has(&Constraint::regex("a0")) && !compiler.has(&Constraint::lark("a199")));
    for letter in ["a", "b", "c", "d", "e"] {
        let with_comment = format!("start: \"a\"\n// {}", letter.repeat(900_000));
        compiler.compile(&Constraint::lark(with_comment)).unwrap();
    }
    let kept = lock(&compiler.kept);
    let n_bytes: usize = kept.iter().map(|(_, text, _)| text.len()).sum();
    assert!(n_bytes <= MAX_KEPT_BYTES, "{n_bytes}");
}

#[test]
fn faulty_constraints_are_refused_by_name() {
    let schema = |value: Value| refusal(&Constraint::json_schema(&value));
    assert!(schema(json!({"type": "nonsense"})).starts_with("the JSON schema cannot be enforced: "));
    assert!(schema(json!({"not": {"type": "string"}})).contains("not"));
    assert!(schema(json!([1])).contains("neither an object nor true or false"));
    assert!(schema(json!({"x-guidance": {"lenient": true}})).contains("x-guidance"));
    assert!(refusal(&Constraint::regex("a(")).starts_with("the regular expression cannot be enforced: "));
    assert!(
        refusal(&Constraint::lark("start: nothing")).starts_with("the Lark grammar cannot be enforced: ")
    );
    assert!(refusal(&Constraint::lark("")).starts_with("the Lark grammar cannot be enforced: "));
    let none: [&str; 0] = [];
    assert!(refusal(&Constraint::choice(none)).contains("it is empty"));
    assert!(refusal(&Constraint::choice(["a", ""])).contains("one of them is empty"));
}

#[test]
fn what_has_no_finite_text_is_refused() {
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
    let expected = "no finite text satisfies the JSON schema";
    assert_eq!(refusal(&Constraint::json_schema(&endless)), expected);
    assert_eq!(
        refusal(&Constraint::lark("start: \"a\" start")),
        "no finite text satisfies the Lark grammar"
    );
    assert!(!refusal(&Constraint::json_schema(json!({"$ref": "#"}))).is_empty());
    assert!(!refusal(&Constraint::json_schema(json!(false))).is_empty());
    let recursive = json!({"type": "object", "properties": {"a": {"$ref": "#"}}});
    assert!(compiler().compile(&Constraint::json_schema(&recursive)).is_ok());
}

#[test]
fn hostile_constraints_are_refused_within_the_limits() {
    let large = json!({"enum": ["x".repeat(10 << 20)]});
    assert!(refusal(&Constraint::json_schema(&large)).contains("the limit is 1048576"));
    let mut deep = json!(true);
    for _ in 0..300 {
        deep = json!({"items": deep});
    }
    assert_eq!(
        refusal(&Constraint::json_schema(&deep)),
        "the JSON schema is nested deeper than 100 levels"
    );
    let parentheses = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(!refusal(&Constraint::regex(&parentheses)).is_empty());
    assert!(!refusal(&Constraint::lark(format!("start: {parentheses}"))).is_empty());
}

#[test]
fn hostile_constraints_end_within_the_limit_of_time() {
    let patterns = [
        "((a{1,100}){1,100}){1,100}",
        "(a|aa|aaa)+b{500}(.*x){20}",
        "(.*a){30}[^z]{1000}",
    ];
    for pattern in patterns {
        let started = Instant::now();
        let compiled = compiler().compile(&Constraint::regex(pattern));
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "{pattern}: {compiled:?}"
        );
    }
    let mut chain = serde_json::Map::new();
    for link in 0..20_000 {
        chain.insert(
            format!("d{link}"),
            json!({"$ref": format!("#/$defs/d{}", link + 1)}),
        );
    }
    chain.insert("d20000".to_owned(), json!({"type": "null"}));
    let schema = json!({"$ref": "#/$defs/d0", "$defs": chain});
    let started = Instant::now();
    let compiled = compiler().compile(&Constraint::json_schema(&schema));
    assert!(started.elapsed() < Duration::from_secs(10), "{compiled:?}");
}

#[test]
fn a_constraint_and_what_comes_in_its_place_share_the_limit_of_time() {
    let limits = ConstraintLimits {
        longest_wait: Duration::from_secs(2),
        ..ConstraintLimits::default()
    };
    let compiler = ConstraintCompiler::with_limits(&bytes_tokenizer(), limits).unwrap();
    for client in 0..MAX_RUNNING as u64 {
        assert!(
            compiler
                .shared
                .places
                .enter(client, Instant::now() + Duration::from_secs(1))
        );
    }
    let calls = Constraint::calls(CallGrammar {
        exact: "start: \"a\"".to_owned(),
        relaxed: Some("start: \"b\"".to_owned()),
        is_optional: false,
        held: Vec::new(),
        told: None,
        has_strict: false,
        has_free_text: false,
        marks: Vec::new(),
    });
    let started = Instant::now();
    assert!(compiler.compile(&calls).is_err());
    let took = started.elapsed();
    assert!(took < Duration::from_millis(3500), "{took:?}");
}

#[test]
fn a_caller_waits_no_longer_than_the_limits_of_time() {
    let compiler = |compile_time: Duration, longest_wait: Duration| {
        let limits = ConstraintLimits {
            compile_time,
            longest_wait,
            ..ConstraintLimits::default()
        };
        ConstraintCompiler::with_limits(&bytes_tokenizer(), limits).unwrap()
    };
    let (short, long) = (Duration::from_millis(20), Duration::from_mins(1));
    let names = (0..3900).map(|idx| {
        (
            format!("name{idx}"),
            json!({"type": "string", "pattern": format!("^{idx}[a-z]{{3}}$")}),
        )
    });
    let schema = json!({"type": "object", "properties": names.collect::<serde_json::Map<_, _>>()});
    let constraint = Constraint::json_schema(&schema);
    let started = Instant::now();
    let refused = compiler(short, long).compile(&constraint).unwrap_err();
    assert!(matches!(refused, ConstraintError::TooSlow { .. }), "{refused}");
    // A lack of time on the machine is not a fault of the constraint.
    let refused = compiler(long, short).compile(&constraint).unwrap_err();
    assert!(matches!(refused, ConstraintError::Busy { .. }), "{refused}");
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Returns calls of these tools; the last rule of each is its JSON.
pub(super) fn calls_of(tools: &[(&str, serde_json::Value)], is_held: bool) -> Constraint {
    let grammar = |tools: &[(&str, serde_json::Value)]| {
        let calls: Vec<String> = (tools.iter())
            .map(|(name, schema)| format!("\"{name}\" %json {schema}"))
            .collect();
        format!("start: {}", calls.join(" | "))
    };
    let held = tools.iter().map(|tool| HeldTool {
        name: tool.0.to_owned(),
        grammar: grammar(std::slice::from_ref(tool)),
    });
    Constraint::calls(CallGrammar {
        exact: grammar(tools),
        relaxed: None,
        is_optional: !is_held,
        held: held.filter(|_| is_held).collect(),
        told: None,
        has_strict: is_held,
        has_free_text: false,
        marks: Vec::new(),
    })
}

#[test]
fn the_tool_that_cannot_be_held_is_named() {
    let plain = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "null"}}});
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
    let negated = json!({"type": "object", "not": {"required": ["b"]}});
    let compiler = compiler();
    let refusal = |bad: &serde_json::Value| {
        // Compiled before without being enforced, if it has a finite text at all.
        let tools = [("good", plain.clone()), ("bad", bad.clone())];
        let _ = compiler.compile(&calls_of(&tools, false));
        compiler.compile(&calls_of(&tools, true)).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(&endless),
        "calls of the tool `bad` cannot be held to its schema: no finite arguments satisfy it"
    );
    assert_eq!(
        refusal(&negated),
        "calls of the tool `bad` cannot be held to its schema: Unimplemented keys: [\"not\"]"
    );
    assert!(compiler.compile(&calls_of(&[("good", plain)], true)).is_ok());
}

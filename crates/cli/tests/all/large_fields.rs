//! Sends every field of every endpoint at its largest, with the most samples and prompts: each request is answered, and what it takes of the
//! server's memory is a multiple of its body, not of its body times its samples.
//!
//! `TOKENMILL_TEST_SECONDS` and `TOKENMILL_TEST_SEED` try more.

use std::{ffi::OsStr, fs};

use serde_json::{Map, Value, json};
use tokenmill_server::{fields::Field, tables};
use tokenmill_testkit::{Random, rounds};

use crate::server::Server;

/// Most memory that a request may take at its height, on top of a multiple of its body. The demo model's contexts are part of it.
const FIXED_MB: u64 = 96;
/// A tree of values takes some multiple of its text.
const BODY_MULTIPLE: u64 = 48;
/// Most memory that stays.
const MAX_LEFT_MB: u64 = 100;

/// Paths with their fields, and the least that a request needs.
fn endpoints() -> Vec<(&'static str, &'static [Field], Value)> {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let chat = json!({ "messages": messages, "max_tokens": 1 });
    vec![
        ("/v1/chat/completions", tables::chat(), chat.clone()),
        (
            "/v1/completions",
            tables::completion(),
            json!({ "prompt": "Hi", "max_tokens": 1 }),
        ),
        (
            "/v1/responses",
            tables::response(),
            json!({ "input": "Hi", "max_output_tokens": 16 }),
        ),
        ("/v1/messages", tables::messages(), chat),
        ("/v1/embeddings", tables::embedding(), json!({ "input": "Hi" })),
        (
            "/completion",
            tables::llama_completion(),
            json!({ "prompt": "Hi", "n_predict": 1 }),
        ),
        (
            "/infill",
            tables::llama_infill(),
            json!({ "input_prefix": "a", "input_suffix": "b", "n_predict": 1 }),
        ),
        (
            "/api/chat",
            tables::ollama_chat(),
            json!({ "messages": messages, "options": { "num_predict": 1 } }),
        ),
        (
            "/api/generate",
            tables::ollama_generate(),
            json!({ "prompt": "Hi", "options": { "num_predict": 1 } }),
        ),
        ("/api/embed", tables::ollama_embed(), json!({ "input": "Hi" })),
    ]
}

/// Makes a value of about `n_bytes` bytes of text.
fn large(random: &mut Random, n_bytes: usize) -> Value {
    let repeated = |value: Value, n: usize| Value::Array(vec![value; n]);
    let text = |n: usize| "xy z".repeat(n.div_ceil(4));
    match random.below(10) {
        0 => json!(text(n_bytes)),
        1 => repeated(json!(text(n_bytes / 16)), 16),
        2 => repeated(json!("ab"), n_bytes / 5),
        3 => repeated(json!(7), n_bytes / 2),
        4 => repeated(json!({ "": {} }), n_bytes / 8),
        5 => {
            let pairs = (0..n_bytes / 16).map(|idx| (idx.to_string(), json!(1.5)));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
        6 => repeated(json!({ "role": "user", "content": text(2000) }), n_bytes / 2040),
        7 => {
            json!([{ "role": "user", "content": "Hi", "name": text(n_bytes / 2), "tool_call_id": text(n_bytes / 2) }])
        }
        8 => {
            json!([{ "type": "function", "function": { "name": "f", "description": text(n_bytes / 2), "parameters":
            { "type": "object", "properties": { "a": { "type": "string", "description": text(n_bytes / 2) } } } } }])
        }
        _ => (0..100).fold(json!(text(n_bytes)), |inside, _| json!({ "a": inside })),
    }
}

fn status_mb(server: &Server, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kb = line.and_then(|line| {
        line.trim_start_matches(':')
            .trim()
            .split(' ')
            .next()?
            .parse::<u64>()
            .ok()
    });
    kb.expect("a number") >> 10
}

#[test]
fn the_largest_value_of_any_field_takes_memory_once() {
    // glibc raises both thresholds after a large allocation is freed, and then keeps up to 64 MB on each heap, which no request holds.
    let give_back = |name| (name, OsStr::new("131072"));
    let variables = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"].map(give_back);
    let server = Server::start_with_variables(&variables, &["demo"]);
    let endpoints = endpoints();
    // The first requests load these modules.
    for (path, _, body) in &endpoints {
        server.ask("POST", path, &body.to_string());
    }
    let first = status_mb(&server, "VmRSS");
    let mut n_answered = 0;
    for seed in rounds("largest values of fields", 40) {
        let mut random = Random::new(seed);
        let (path, fields, body) = random.pick(&endpoints);
        let fields: &[Field] = fields;
        let field = random.pick(fields).name;
        let n_bytes = 1 << (16 + random.below(6));
        let mut body = body.clone();
        body[field] = large(&mut random, n_bytes);
        let has = |name: &str| fields.iter().any(|other| other.name == name && name != field);
        if has("n") && random.below(3) > 0 {
            body["n"] = json!(128);
        }
        if has("prompt") && *path == "/v1/completions" && random.below(3) == 0 {
            body["prompt"] = json!(vec!["Hi"; 256]);
            body["n"] = json!(1);
        }
        if has("stream") && random.below(3) == 0 {
            body["stream"] = json!(true);
        }
        let body = body.to_string();
        // Count the height from zero.
        let _ = fs::write(format!("/proc/{}/clear_refs", server.id()), "5");
        let before = status_mb(&server, "VmRSS");
        let (status, text) = server.ask_text("POST", path, &body);
        let what = format!(
            "seed {seed}: {path} with `{field}`, {} bytes, answered {status}",
            body.len()
        );
        assert!(
            status < 500 || status == 503,
            "{what}: {}",
            text.chars().take(500).collect::<String>()
        );
        n_answered += u32::from(status == 200);
        let taken = status_mb(&server, "VmHWM").saturating_sub(before);
        let most = FIXED_MB + BODY_MULTIPLE * (body.len() as u64 >> 20);
        assert!(taken <= most, "{what}: {taken} MB at its height, at most {most}");
    }
    assert!(n_answered > 0);
    let left = status_mb(&server, "VmRSS").saturating_sub(first);
    assert!(left < MAX_LEFT_MB, "{left} MB stay");
    assert_eq!(server.complete("demo").0, 200);
}

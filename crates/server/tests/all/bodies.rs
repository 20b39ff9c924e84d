//! Request bodies of every shape against the whole API without a socket: the claims of the fuzz target, and a mutator
//! that knows JSON and the field tables.
//!
//! An input is one byte that chooses the endpoint and the body. Whatever it is, the answer is a whole one or an error of
//! the documented form, nothing panics, and no KV page stays held.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{Request, header},
};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value, json};
use tokenmill::{Model, load::LoadedDevice};
use tokenmill_model::Model as Network;
use tokenmill_sched::{Engine, EngineConfig};
use tokenmill_server::{App, ServedModel, ServerConfig, fields::Field, router, tables};
use tokenmill_testkit::Random;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

use crate::{
    babble::babble,
    demo::{demo_path, words_of},
};

const N_PAGES: usize = 256;

/// Paths that take a body, each with a letter.
const ENDPOINTS: [&str; 18] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/completion",
    "/infill",
    "/v1/decisions",
    "/v1/systemone",
];

/// Good requests from which the search begins; the letter is the endpoint's place in the list.
pub(crate) const SEEDS: [&str; 29] = [
    r#"a{"messages":[{"role":"user","content":"Hi"}]}"#,
    r#"a{"model":"demo","messages":[{"role":"system","content":"x"},{"role":"user","content":[{"type":"text","text":"Hi"}]},{"role":"assistant","content":"Ho"},{"role":"user","content":"<|end|>"}],"n":2,"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":3,"seed":7}"#,
    r#"a{"messages":[{"role":"user","content":"Hi"}],"temperature":0.7,"top_p":0.9,"top_k":5,"min_p":0.1,"typical_p":0.9,"frequency_penalty":0.5,"presence_penalty":-0.5,"repetition_penalty":1.1,"logit_bias":{"5":-100,"6":3},"stop":["a","b"],"max_completion_tokens":9,"ignore_eos":true}"#,
    r#"a{"messages":[{"role":"user","content":"Hi"}],"dry_multiplier":0.8,"dry_base":1.7,"dry_allowed_length":2,"repeat_last_n":64,"chat_template_kwargs":{"a":1},"add_generation_prompt":false}"#,
    r#"b{"prompt":"Once","max_tokens":5,"echo":true,"logprobs":2,"n":2,"best_of":2}"#,
    r#"b{"prompt":["Once","upon"],"max_tokens":5,"stream":true,"stop":"a"}"#,
    r#"b{"prompt":[[1,2,3],[4]],"max_tokens":5}"#,
    r#"b{"prompt":[1,2,3],"max_tokens":0,"echo":true,"logprobs":0,"stream":true}"#,
    r#"c{"input":["a","b"],"encoding_format":"base64"}"#,
    r#"c{"input":[1,2,3],"encoding_format":"float","user":"u"}"#,
    r#"d{"input":"Hi","instructions":"be kind","max_output_tokens":9,"stream":true,"top_logprobs":2,"include":["message.output_text.logprobs"]}"#,
    r#"d{"input":[{"role":"user","content":"Hi"}],"text":{"format":{"type":"text"}},"store":false,"metadata":{}}"#,
    r#"e{"model":"demo","max_tokens":9,"system":[{"type":"text","text":"x"}],"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"stop_sequences":["e"],"stream":true}"#,
    r#"f{"messages":[{"role":"user","content":"Hi"}],"system":"x"}"#,
    r#"g{"content":"Hi <|end|>","add_special":true,"parse_special":true,"with_pieces":true}"#,
    r#"h{"tokens":[1,2,3]}"#,
    r#"g{"messages":[{"role":"assistant","content":"Hi"}],"continue_final_message":true,"return_token_strs":true}"#,
    r#"j{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Ho"}],"continue_final_message":true,"min_tokens":3,"cache_salt":"x"}"#,
    r#"k{"prompt":["Hi",""],"keep_alive":"5m","dry_multiplier":1,"dry_sequence_breakers":["a"]}"#,
    r#"l{"model":"demo:latest","messages":[{"role":"user","content":"Hi"},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]},{"role":"tool","tool_name":"f","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"think":true,"options":{"num_predict":9,"seed":7,"stop":["a"],"num_ctx":64},"keep_alive":"5m"}"#,
    r#"l{"messages":[{"role":"user","content":"Hi"}],"stream":false,"logprobs":true,"top_logprobs":2,"options":{"temperature":0}}"#,
    r#"m{"prompt":"Hi","system":"x","think":"low","options":{"num_predict":9,"mirostat":0,"num_gpu":1}}"#,
    r#"n{"input":["a","b"],"truncate":true,"dimensions":4,"options":{"num_ctx":64}}"#,
    r#"o{"prompt":"Hi <|end|>","n_predict":9,"stream":true,"n_probs":2,"cache_prompt":true,"id_slot":-1,"seed":-1,"samplers":null}"#,
    r#"o{"prompt":[1,2,3],"n_predict":5,"return_tokens":true,"stop":["a"],"min_p":0.1}"#,
    r#"p{"input_prefix":"a","input_suffix":"b","n_predict":5}"#,
    r#"q{"input":[{"role":"user","content":"Hi"}],"questions":[{"type":"predicate","instructions":"a"},{"type":"choice","instructions":"b","choices":[{"value":"c"},{"value":true}]},{"type":"score","instructions":"d","levels":[{"label":"e"},{"label":"f"}]}]}"#,
    r#"q{"input":"Hi","questions":[{"id":"a","type":"yes_no","question":"b"},{"id":"c","type":"choice","question":"d","options":[{"name":"e"},{"name":"f"}]}],"temperature":2}"#,
    r#"r{"state":{"a":1},"questions":{"b":{"type":"noul","criteria":{"true":"c"}},"d":{"type":"score","criteria":["e","f"]},"g":{"type":"choice","instructions":"h","criteria":{"i":null}}},"permutations":2}"#,
];

/// The API with an engine that babbles.
pub(crate) struct Harness {
    runtime: Runtime,
    router: Router,
    app: Arc<App>,
    n_checked: Cell<u64>,
}

impl Harness {
    /// Builds it; `None` without the demo model's words.
    pub(crate) fn new() -> Option<Self> {
        let words = words_of(&Network::open(demo_path()?).expect("the demo model opens"));
        let end_id = words.tokenizer().end_of_generation()[0];
        let executor = babble(words.tokenizer().n_vocab(), end_id, N_PAGES);
        let engine = Engine::start(executor, EngineConfig::default());
        let config = ServerConfig {
            max_n: 4,
            max_prompts: 4,
            ..ServerConfig::default()
        };
        let model = Model::from_parts("demo", words, engine, LoadedDevice::Own, None);
        let model = ServedModel::new(vec!["demo".to_owned()], model);
        let app = Arc::new(App::new(model, config));
        Some(Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime"),
            router: router(Arc::clone(&app)),
            app,
            n_checked: Cell::new(0),
        })
    }

    /// Sends an input and checks what comes back.
    pub(crate) fn check(&self, input: &[u8]) {
        let Some((&letter, body)) = input.split_first() else {
            return;
        };
        let path = endpoint_of(letter);
        let request = Request::post(path)
            .body(Body::from(body.to_vec()))
            .expect("a request");
        let (status, kind, answer) = self.runtime.block_on(async {
            let response = self
                .router
                .clone()
                .oneshot(request)
                .await
                .expect("a router cannot fail");
            let kind = response.headers().get(header::CONTENT_TYPE).cloned();
            let status = response.status().as_u16();
            let answer = response.into_body().collect().await.expect("a whole answer");
            (status, kind, answer.to_bytes())
        });
        let answer = std::str::from_utf8(&answer).expect("answers are UTF-8");
        match status {
            200 if kind.as_ref().is_some_and(|kind| kind == "text/event-stream") => {
                check_stream(path, answer);
            }
            200 if kind.is_some_and(|kind| kind == "application/x-ndjson") => check_lines(answer),
            200 => {
                let answer: Value = serde_json::from_str(answer).expect("answers are JSON");
                // A request to render may have several prompts.
                let is_list = path == "/v1/completions/render";
                assert!(answer.is_object() || is_list && answer.is_array(), "{answer}");
            }
            400 | 404 => check_error(path, answer),
            422 if path == "/v1/systemone" => check_error(path, answer),
            _ => panic!("{path} answered {status}: {answer}"),
        }
        self.n_checked.set(self.n_checked.get() + 1);
        if self.n_checked.get().is_multiple_of(64) {
            self.assert_idle();
        }
    }

    /// Waits until no page is held.
    pub(crate) fn assert_idle(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.app.model.engine().stats().n_pages_in_use > 0 {
            assert!(Instant::now() < deadline, "pages are held though nothing runs");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The path that a letter stands for.
pub(crate) fn endpoint_of(letter: u8) -> &'static str {
    ENDPOINTS[usize::from(letter.wrapping_sub(b'a')) % ENDPOINTS.len()]
}

fn check_stream(path: &str, answer: &str) {
    let data: Vec<&str> = answer
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    let (last, events) = data.split_last().expect("a stream has events");
    for event in events {
        let event: Value = serde_json::from_str(event).expect("events are JSON");
        assert!(event.get("error").is_none_or(Value::is_null), "{event}");
    }
    if path == "/completion" {
        let last: Value = serde_json::from_str(last).expect("events are JSON");
        assert!(last["stop"] == true && last["stop_type"].is_string(), "{last}");
    } else if matches!(path, "/v1/responses" | "/v1/messages") {
        let last: Value = serde_json::from_str(last).expect("events are JSON");
        let kind = last["type"].as_str().expect("a type");
        assert!(
            ["response.completed", "response.incomplete", "message_stop"].contains(&kind),
            "{last}"
        );
    } else {
        assert_eq!(*last, "[DONE]");
    }
}

fn check_lines(answer: &str) {
    let lines: Vec<Value> = answer
        .lines()
        .map(|line| serde_json::from_str(line).expect("lines are JSON"))
        .collect();
    let (end, pieces) = lines.split_last().expect("a stream has lines");
    assert!(
        end["done"] == true && pieces.iter().all(|line| line["done"] == false),
        "{answer}"
    );
}

fn check_error(path: &str, answer: &str) {
    let answer: Value = serde_json::from_str(answer).expect("errors are JSON");
    let error = &answer["error"];
    if path.starts_with("/api/") {
        assert!(error.as_str().is_some_and(|text| text.len() > 5), "{answer}");
        return;
    }
    if path == "/v1/systemone" {
        let detail = &answer["detail"];
        let text = detail.as_str().or_else(|| detail[0]["msg"].as_str());
        assert!(text.is_some_and(|text| text.len() > 5), "{answer}");
        return;
    }
    assert!(
        error["message"].as_str().is_some_and(|text| text.len() > 5)
            && error["type"].is_string()
            && (path.starts_with("/v1/messages") || error["code"].is_string()),
        "{answer}"
    );
}

/// Changes an input: its JSON where it is JSON, its bytes where it is not, and now and then where it is.
pub(crate) fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    let Some((&letter, body)) = input.split_first() else {
        input.extend(SEEDS[random.below(SEEDS.len())].bytes());
        return;
    };
    if random.below(20) == 0 {
        input[0] = b'a' + random.below(ENDPOINTS.len()) as u8;
        return;
    }
    if random.below(8) > 0
        && let Ok(Value::Object(mut object)) = serde_json::from_slice(body)
    {
        mutate_object(&mut object, endpoint_of(letter), random);
        input.truncate(1);
        input.extend(Value::Object(object).to_string().bytes());
        return;
    }
    let at = random.below(input.len());
    match random.below(4) {
        0 => input[at] ^= 1 << random.below(8),
        1 => input.truncate(at),
        2 => input.insert(at, b"{}[]\",:\\u0\xff"[random.below(11)]),
        _ => input.extend_from_within(at..),
    }
}

fn mutate_object(object: &mut Map<String, Value>, path: &str, random: &mut Random) {
    match random.below(4) {
        0 => {
            let fields = fields_of(path);
            let name = fields[random.below(fields.len())].name;
            object.insert(name.to_owned(), interesting(random));
        }
        1 if !object.is_empty() => {
            let name = object.keys().nth(random.below(object.len())).cloned();
            object.remove(&name.expect("a name of the object"));
        }
        _ => {
            let mut whole = Value::Object(std::mem::take(object));
            let value = interesting(random);
            let place = pick(&mut whole, random);
            *place = match random.below(3) {
                0 => json!([place.clone(), value]),
                _ => value,
            };
            if let Value::Object(changed) = whole {
                *object = changed;
            }
        }
    }
}

fn fields_of(path: &str) -> &'static [Field] {
    match path {
        "/v1/completions" => tables::completion(),
        "/v1/embeddings" => tables::embedding(),
        "/v1/responses" => tables::response(),
        "/v1/messages" | "/v1/messages/count_tokens" => tables::messages(),
        "/api/chat" => tables::ollama_chat(),
        "/api/generate" => tables::ollama_generate(),
        "/api/embed" => tables::ollama_embed(),
        "/completion" => tables::llama_completion(),
        "/infill" => tables::llama_infill(),
        _ => tables::chat(),
    }
}

/// Some place within a value.
fn pick<'v>(value: &'v mut Value, random: &mut Random) -> &'v mut Value {
    let n_inside = match value {
        Value::Array(items) => items.len(),
        Value::Object(object) => object.len(),
        _ => 0,
    };
    if n_inside == 0 || random.below(4) == 0 {
        return value;
    }
    let chosen = random.below(n_inside);
    let inside = match value {
        Value::Array(items) => &mut items[chosen],
        Value::Object(object) => object.values_mut().nth(chosen).expect("a value of the object"),
        _ => unreachable!("a plain value has nothing inside"),
    };
    pick(inside, random)
}

/// A value at the edge of what something might expect.
fn interesting(random: &mut Random) -> Value {
    const TEXTS: [&str; 12] = [
        "",
        "a",
        "\0",
        "<|end|>",
        "auto",
        "none",
        "user",
        "text",
        "\u{feff}\u{202e}é🙂",
        "{{ 1/0 }}",
        "base64",
        "input_text",
    ];
    match random.below(14) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!(random.below(300)),
        3 => json!(-(random.below(300) as i64)),
        4 => json!([u64::MAX, 1 << 32, 1 << 31, 1 << 53][random.below(4)]),
        5 => json!(i64::MIN),
        6 => json!([1e308, -1e308, 1e-320, 0.5, -0.0][random.below(5)]),
        7 => json!([]),
        8 => json!({}),
        9 => json!({ "type": "text", "text": TEXTS[random.below(TEXTS.len())] }),
        10 => json!({ "role": "user", "content": TEXTS[random.below(TEXTS.len())] }),
        11 => (0..random.below(200)).fold(Value::Null, |inside, _| json!([inside])),
        12 => json!("word ".repeat(random.below(400))),
        _ => json!(TEXTS[random.below(TEXTS.len())]),
    }
}

/// Prints the body of a failed round.
struct Shown<'b>(&'b [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the body: {}", String::from_utf8_lossy(self.0));
        }
    }
}

#[test]
fn mutated_bodies_are_answered_or_refused_and_leave_nothing_behind() {
    let Some(harness) = Harness::new() else {
        return;
    };
    for good in SEEDS {
        harness.check(good.as_bytes());
    }
    for seed in tokenmill_testkit::rounds("mutated bodies", 40 * SEEDS.len() as u64) {
        let mut random = Random::new(seed);
        let mut input = SEEDS[seed as usize % SEEDS.len()].as_bytes().to_vec();
        for _ in 0..=random.below(4) {
            mutate(&mut input, &mut random);
        }
        let shown = Shown(&input);
        harness.check(&input);
        drop(shown);
    }
    harness.assert_idle();
}

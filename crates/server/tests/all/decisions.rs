//! Decisions over both paths and in three shapes: fields, errors, and requests that must not cost anything.

use std::{
    thread,
    time::{Duration, Instant},
};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Map, Value, json};
use tokenmill::{Model, decide::Question};
use tokenmill_server::{ModelLimits, ModelLoader, ModelSpec, ServerConfig, models::Measured};
use tokio::sync::watch;

use crate::{
    demo::demo_path,
    server::{Setup, TestServer, hanging_demo, wait_until},
    several::Several,
    wire::Exchange,
};

const STATE: &str = "The cat sat on the red mat near the door. A big dog came into the house, and the cat was sad. They played all \
                     day in the sun and became good friends.";

fn system_one_questions() -> Value {
    json!({
        "sad": { "type": "noul", "instructions": "Was the cat sad?" },
        "who": { "type": "choice", "instructions": "Who came?", "criteria": { "dog": "a big one", "bird": null } },
        "mood": { "type": "score", "instructions": "How happy are they?", "criteria": ["sad", "calm", "happy"] },
    })
}

fn openai_questions() -> Value {
    json!([
        { "type": "predicate", "instructions": "Was the cat sad?", "name": "sad" },
        { "type": "choice", "instructions": [{ "type": "input_text", "text": "Who came?" }],
          "choices": [{ "value": "dog", "description": "a big one" }, { "value": "bird" }] },
        { "type": "score", "instructions": "How happy are they?",
          "levels": [{ "label": "sad" }, { "label": "calm" }, { "label": "happy" }] },
    ])
}

fn sglang_questions() -> Value {
    json!([
        { "id": "sad", "type": "yes_no", "question": "Was the cat sad?" },
        { "id": "who", "type": "choice", "question": "Who came?",
          "options": [{ "name": "dog", "description": "a big one" }, { "name": "bird" }] },
        { "id": "mood", "type": "score", "question": "How happy are they?", "levels": ["sad", "calm", "happy"] },
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn three_shapes_give_the_same_numbers() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = json!({ "model": "demo", "state": STATE, "questions": system_one_questions() });
    let system_one = server.post_ok("/v1/systemone", &body).await;
    let asked = [
        Question::predicate("Was the cat sad?"),
        Question::choice("Who came?", [("dog", "a big one"), ("bird", "")]),
        Question::score("How happy are they?", ["sad", "calm", "happy"]),
    ];
    let model = server.app.model.model().clone();
    let decided = tokio::task::spawn_blocking(move || model.decide(STATE, &asked));
    let decided = decided.await.expect("it ends").expect("it is answered");
    let [sad, who, mood] = &decided[..] else {
        panic!("{decided:?}");
    };
    let (dog, bird) = (who.probabilities[0], who.probabilities[1]);
    let choice = if dog >= bird { "dog" } else { "bird" };
    let levels = &mood.probabilities;
    assert_eq!(
        system_one["answers"],
        json!({
            "sad": { "type": "noul", "noul": sad.probabilities[0], "x_label_mass": sad.label_mass },
            "who": { "type": "choice", "choice": choice, "confidence": who.choice_confidence(),
                "probabilities": { "dog": dog, "bird": bird }, "x_label_mass": who.label_mass },
            "mood": { "type": "score", "score": mood.expected_level(), "confidence": mood.score_confidence(),
                "legend": { "0": "sad", "1": "calm", "2": "happy" },
                "probabilities": { "0": levels[0], "1": levels[1], "2": levels[2] }, "x_label_mass": mood.label_mass },
        })
    );
    assert_eq!(system_one["model"], "demo");
    let usage = &system_one["usage"];
    assert!(usage["input_tokens"].as_u64() > Some(3 * 40), "{usage}");
    assert_eq!(usage["output_tokens"], 0);

    let body =
        json!({ "model": "demo", "input": STATE, "questions": openai_questions(), "safety_identifier": "u" });
    let openai = server.post_ok("/v1/decisions", &body).await;
    assert_eq!(
        openai["answers"],
        json!([
            { "type": "predicate", "name": "sad", "probability": sad.probabilities[0], "x_label_mass": sad.label_mass },
            { "type": "choice", "name": null, "choice": choice, "confidence": who.choice_confidence(),
              "probabilities": [{ "value": "dog", "probability": dog }, { "value": "bird", "probability": bird }],
              "x_label_mass": who.label_mass },
            { "type": "score", "name": null, "score": mood.expected_level(), "confidence": mood.score_confidence(),
              "probabilities": [
                  { "value": 0, "label": "sad", "probability": levels[0] },
                  { "value": 1, "label": "calm", "probability": levels[1] },
                  { "value": 2, "label": "happy", "probability": levels[2] }],
              "x_label_mass": mood.label_mass },
        ])
    );
    // The prompts were computed a moment before.
    let cached = openai["usage"]["input_tokens_details"]["cached_tokens"].as_u64();
    assert!(
        cached > usage["input_tokens_details"]["cached_tokens"].as_u64(),
        "{openai}"
    );
    assert_eq!(openai["usage"]["total_tokens"], usage["input_tokens"]);
    assert_eq!(openai["usage"]["output_tokens_details"]["reasoning_tokens"], 0);

    let body = json!({ "input": STATE, "questions": sglang_questions(), "prompt_format_version": 1, "temperature": 1.0 });
    let sglang = server.post_ok("/v1/decisions", &body).await;
    assert_eq!(
        sglang["answers"],
        json!({
            "sad": { "type": "yes_no", "label_mass": sad.label_mass,
                "probabilities": { "yes": sad.probabilities[0], "no": sad.probabilities[1] } },
            "who": { "type": "choice", "choice": choice, "label_mass": who.label_mass,
                "probabilities": { "dog": dog, "bird": bird } },
            "mood": { "type": "score", "score": mood.expected_level(), "label_mass": mood.label_mass,
                "probabilities": { "0": levels[0], "1": levels[1], "2": levels[2] } },
        })
    );
    assert_eq!(
        (&sglang["object"], &sglang["prompt_format_version"]),
        (&json!("decisions"), &json!(1))
    );
    assert_eq!(sglang["usage"]["prompt_tokens"], usage["input_tokens"]);
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn further_fields_have_their_effects() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let ask = async |more: Value| {
        let mut body = json!({ "input": STATE, "questions": sglang_questions() });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        server.post_ok("/v1/decisions", &body).await["answers"].clone()
    };
    let plain = ask(json!({})).await;
    let of = |answers: &Value, id: &str, name: &str| {
        answers[id]["probabilities"][name].as_f64().expect("a number")
    };
    let hot = ask(json!({ "temperature": 1000.0 })).await;
    assert!((of(&hot, "sad", "yes") - 0.5).abs() < 0.05, "{hot}");
    assert_eq!(hot["sad"]["label_mass"], plain["sad"]["label_mass"]);
    let both = ask(json!({ "permutations": 2 })).await;
    assert_ne!(
        of(&both, "who", "dog").to_bits(),
        of(&plain, "who", "dog").to_bits()
    );
    // An object is compact JSON in the order of its keys.
    let questions = json!({ "sad": { "type": "noul", "instructions": "Is it sad?" } });
    let noul = async |state: Value| {
        let body = json!({ "state": state, "questions": questions });
        server.post_ok("/v1/systemone", &body).await["answers"]["sad"]["noul"].clone()
    };
    assert_eq!(
        noul(json!({ "cat": "sad", "age": 3 })).await,
        noul(json!(r#"{"cat":"sad","age":3}"#)).await
    );
    // Values of a choice keep their types.
    let questions = json!([{ "type": "choice", "instructions": "Is the cat sad?",
        "choices": [{ "value": true }, { "value": false }, { "value": "unknown" }] }]);
    let body = json!({ "input": [{ "role": "user", "content": STATE }], "questions": questions });
    let answer = server.post_ok("/v1/decisions", &body).await["answers"][0].clone();
    assert_eq!(answer["probabilities"][1]["value"], false);
    assert_eq!(answer["probabilities"][2]["value"], "unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_is_named_in_the_form_of_its_api() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let noul = |question: Value| json!({ "state": "a", "questions": { "q": question } });
    for (body, loc) in [
        (json!({ "questions": {} }), json!(["body", "state"])),
        (json!({ "state": "a" }), json!(["body", "questions"])),
        (json!({ "state": 3, "questions": {} }), json!(["body", "state"])),
        (
            json!({ "state": "a", "questions": {} }),
            json!(["body", "questions"]),
        ),
        (
            json!({ "state": "a", "questions": [] }),
            json!(["body", "questions"]),
        ),
        (
            json!({ "state": "a", "questions": {}, "mode": "x" }),
            json!(["body", "mode"]),
        ),
        (
            json!({ "state": "a", "questions": {}, "assets": { "x": { "part": "y" } } }),
            json!(["body", "assets"]),
        ),
        (
            noul(json!({ "type": "box" })),
            json!(["body", "questions", "q", "type"]),
        ),
        (noul(json!({ "type": "noul" })), json!(["body", "questions", "q"])),
        (
            noul(json!({ "type": "noul", "criteria": { "maybe": "" } })),
            json!(["body", "questions", "q", "criteria", "maybe"]),
        ),
        (
            noul(json!({ "type": "choice", "criteria": {} })),
            json!(["body", "questions", "q"]),
        ),
        // Names with the marks of paths stay whole.
        (
            json!({ "state": "a", "questions": { "is.it[0]": { "type": "noul" } } }),
            json!(["body", "questions", "is.it[0]"]),
        ),
        (
            json!({ "state": "a", "questions": { "7": { "type": "choice", "criteria": { "a.b": 3 } } } }),
            json!(["body", "questions", "7", "criteria", "a.b"]),
        ),
        (
            json!({ "state": "a", "questions": system_one_questions(), "permutations": 0 }),
            json!(["body", "permutations"]),
        ),
    ] {
        let reply = server.post("/v1/systemone", &body).await;
        assert_eq!(reply.status, 422, "{body}: {}", reply.text());
        let detail = reply.json()["detail"][0].clone();
        assert_eq!(detail["loc"], loc, "{body}: {detail}");
        assert!(
            detail["msg"].is_string() && detail["type"].is_string(),
            "{detail}"
        );
    }
    let body = json!({ "state": "cat ".repeat(2000), "questions": system_one_questions() });
    let reply = server.post("/v1/systemone", &body).await;
    assert_eq!(
        (reply.status, reply.json()["detail"].is_string()),
        (400, true),
        "{}",
        reply.text()
    );

    let with = |questions: Value| json!({ "input": "a", "questions": questions });
    let choice =
        |values: Value| with(json!([{ "type": "choice", "instructions": "Which?", "choices": values }]));
    for (body, param) in [
        (json!({ "questions": [] }), "input"),
        (json!({ "input": "a" }), "questions"),
        (with(json!([])), "questions"),
        (with(json!(["a"])), "questions[0]"),
        (
            with(json!([{ "type": "predicate" }])),
            "questions[0].instructions",
        ),
        (
            with(json!([{ "type": "noul", "instructions": "a" }])),
            "questions[0].type",
        ),
        (
            with(json!([{ "type": "predicate", "instructions": "a", "weight": 1 }])),
            "questions[0].weight",
        ),
        (choice(json!([{ "value": "a" }])), "questions[0].choices"),
        (
            choice(json!([{ "value": "a" }, { "value": 1 }])),
            "questions[0].choices[1].value",
        ),
        (
            choice(json!([{ "value": "a" }, { "value": "a" }])),
            "questions[0].choices[1].value",
        ),
        (
            with(json!([{ "id": "a", "type": "yes_no" }])),
            "questions[0].question",
        ),
        (
            with(json!([{ "id": "a", "type": "score", "question": "b", "levels": ["c"] }])),
            "questions[0].levels",
        ),
        (
            with(
                json!([{ "id": "a", "type": "yes_no", "question": "b" }, { "id": "a", "type": "yes_no", "question": "b" }]),
            ),
            "questions[1].id",
        ),
        (
            with(
                json!([{ "id": "a", "type": "yes_no", "question": "b" }, { "type": "predicate", "instructions": "b" }]),
            ),
            "questions",
        ),
        (
            json!({ "input": "a", "questions": openai_questions(), "temperature": 2 }),
            "temperature",
        ),
        (
            json!({ "input": "a", "questions": sglang_questions(), "temperature": 0 }),
            "temperature",
        ),
        (
            json!({ "input": "a", "questions": sglang_questions(), "prompt_format_version": 2 }),
            "prompt_format_version",
        ),
        (
            json!({ "input": "a", "questions": sglang_questions(), "return_prompt_token_ids": true }),
            "return_prompt_token_ids",
        ),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }], "questions": openai_questions() }),
            "input[0].content[0].image_url",
        ),
        // The model sees no images.
        (
            json!({ "input": "a", "questions": sglang_questions(), "images": ["data:;base64,aGk="] }),
            "images",
        ),
    ] {
        let reply = server.post("/v1/decisions", &body).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param, "{body}: {}", reply.text());
    }
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_of_questions_name_those_near_them() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let predicate = json!([{ "type": "predicate", "instruction": "Is it?" }]);
    let reply = server
        .post("/v1/decisions", &json!({ "input": "a", "questions": predicate }))
        .await;
    let error = reply.json()["error"].clone();
    assert_eq!(error["param"], "questions[0].instruction", "{error}");
    let message = error["message"].to_string();
    assert!(message.contains("near it: `instructions`"), "{message}");
    let noul = json!({ "type": "noul", "instructions": "Is it?", "criterion": { "true": "yes" } });
    let reply = server
        .post(
            "/v1/systemone",
            &json!({ "state": "a", "questions": { "q": noul } }),
        )
        .await;
    let message = reply.json()["detail"][0]["msg"].to_string();
    assert!(message.contains("near it: `criteria`"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_are_refused_before_anything_is_computed() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let many = |n: usize| -> Map<String, Value> {
        let noul = json!({ "type": "noul", "instructions": "Is it?" });
        (0..n).map(|idx| (format!("q{idx}"), noul.clone())).collect()
    };
    let long = "x".repeat(1 << 20);
    let one = |question: Value| json!({ "q": question });
    let letters: Map<String, Value> = (0..255)
        .map(|idx| (format!("option {idx}"), Value::Null))
        .collect();
    for (state, questions) in [
        ("a", json!(many(10_000))),
        (&long, json!(many(400))),
        ("a", one(json!({ "type": "noul", "instructions": long }))),
        (
            "a",
            one(json!({ "type": "choice", "criteria": { "a": long, "b": "b" } })),
        ),
        ("a", one(json!({ "type": "choice", "criteria": { &long: "a" } }))),
        (
            "a",
            one(json!({ "type": "score", "criteria": vec!["level"; 11] })),
        ),
        // More options than this vocabulary has labels.
        ("a", one(json!({ "type": "choice", "criteria": letters }))),
    ] {
        let body = json!({ "state": state, "questions": questions });
        let reply = server.post("/v1/systemone", &body).await;
        assert_eq!(reply.status, 422, "{}", reply.text());
    }
    let questions = vec![json!({ "type": "predicate", "instructions": "Is it?" }); 10_000];
    let reply = server
        .post("/v1/decisions", &json!({ "input": "a", "questions": questions }))
        .await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert_eq!(server.app.model.engine().stats().scheduler.steps, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_do_not_disturb_others() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let asked = json!({ "state": STATE, "questions": system_one_questions() });
    let expected = server.post_ok("/v1/systemone", &asked).await["answers"].clone();
    let noul = json!({ "type": "noul", "instructions": "Is it?" });
    let many: Map<String, Value> = (0..10_000).map(|idx| (format!("q{idx}"), noul.clone())).collect();
    let long = "x".repeat(1 << 20);
    let hostile = [
        json!({ "state": "a", "questions": many }),
        json!({ "state": "a", "questions": { "q": { "type": "choice", "criteria": { &long: &long, "b": null } } } }),
        // Labels that collide: two options that the model reads alike.
        json!({ "state": "a", "questions": { "q": { "type": "score", "criteria": ["same", "other", "same"] } } }),
    ];
    let refusals = async {
        for body in hostile.iter().cycle().take(12) {
            let reply = server.post("/v1/systemone", body).await;
            assert_eq!(reply.status, 422, "{}", reply.text());
            assert!(reply.body.len() < 4096, "{} bytes", reply.body.len());
        }
    };
    let others = async {
        for _ in 0..6 {
            let reply = server.post_ok("/v1/systemone", &asked).await;
            assert_eq!(reply["answers"], expected);
        }
    };
    tokio::join!(refusals, others);
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_cannot_close_its_reasoning_is_named() {
    let template = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}<|assistant|><think>\n";
    let setup = Setup {
        template: Some(template.to_owned()),
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let reply = server
        .post(
            "/v1/decisions",
            &json!({ "input": "a", "questions": openai_questions() }),
        )
        .await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    let message = reply.json()["error"]["message"].to_string();
    assert!(message.contains("opens the reasoning"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_and_a_deadline_end_the_questions() {
    let (hang, blocked) = watch::channel(false);
    let setup = Setup {
        hang: Some(blocked),
        server: ServerConfig {
            request_timeout: Some(Duration::from_secs(3)),
            ..ServerConfig::default()
        },
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let body = json!({ "state": STATE, "questions": system_one_questions() });
    let engine = server.app.model.engine();
    hang.send_replace(true);
    let left = server.post_stream("/v1/systemone", &body).await;
    wait_until("it is in the engine", || {
        engine.queued().0 + engine.stats().n_running > 0
    })
    .await;
    drop(left);
    let late = server.post_stream("/v1/systemone", &body).await;
    tokio::time::sleep(Duration::from_millis(3300)).await;
    hang.send_replace(false);
    let reply = late.reply().await;
    assert_eq!(reply.status, 504, "{}", reply.text());
    assert!(reply.json()["detail"].is_string());
    server.assert_idle().await;
}

/// A model that takes a second to load. Its steps wait while the value is true.
#[derive(Debug)]
struct Late(watch::Receiver<bool>);

impl ModelLoader for Late {
    fn measure(&self) -> Result<Measured, String> {
        Ok(Measured::default())
    }

    fn load(&self, _is_quiet: bool) -> Result<Model, String> {
        thread::sleep(Duration::from_secs(1));
        hanging_demo(self.0.clone()).ok_or_else(|| "there is no demo model".to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_for_a_model_counts_against_the_time_of_a_decision() {
    if demo_path().is_none() {
        return;
    }
    let (hang, blocked) = watch::channel(true);
    let config = ServerConfig {
        request_timeout: Some(Duration::from_secs(2)),
        ..ServerConfig::default()
    };
    let specs = vec![ModelSpec::new("late", Late(blocked))];
    let server = Several::start(specs, ModelLimits::default(), config).await;
    let body = json!({ "model": "late", "state": STATE, "questions": system_one_questions() });
    let late = server.send("/v1/systemone", &body).await;
    // Two seconds from its arrival are over, and two from the end of the load are not.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    hang.send_replace(false);
    let reply = late.reply().await;
    assert_eq!(reply.status, 504, "{}", reply.text());
    let reply = server.post("/v1/systemone", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_salt_keeps_cached_prompts_apart() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let questions = json!({ "sad": { "type": "noul", "instructions": "Was the cat sad?" } });
    let ask = async |salt: Option<&str>| {
        let body = json!({ "state": STATE, "questions": questions, "cache_salt": salt });
        server.post("/v1/systemone", &body).await
    };
    let n_cached = async |salt: Option<&str>| {
        let reply = ask(salt).await.json();
        let n_cached = reply["usage"]["input_tokens_details"]["cached_tokens"].as_u64();
        n_cached.expect("a count")
    };
    assert_eq!(n_cached(Some("a")).await, 0);
    assert!(n_cached(Some("a")).await > 0);
    assert_eq!(n_cached(Some("b")).await, 0, "another salt finds nothing");
    assert_eq!(n_cached(None).await, 0, "nor does a request without one");
    let refused = ask(Some("")).await;
    assert_eq!(
        (refused.status, &refused.json()["detail"][0]["loc"]),
        (422, &json!(["body", "cache_salt"]))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_read_compressed_by_zstd_and_no_other_way() {
    let setup = Setup {
        server: ServerConfig {
            max_body_bytes: 1 << 20,
            ..ServerConfig::default()
        },
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let post = async |path: &str, encoding: &str, body: &[u8]| {
        let headers = [
            ("content-encoding", encoding),
            ("content-type", "application/json"),
        ];
        let exchange = Exchange::send(&server.address, "POST", path, &headers, body).await;
        exchange.reply().await
    };
    let compressed = |body: &[u8]| compress_to_vec(body, CompressionLevel::Fastest);
    let asked = json!({ "state": STATE, "questions": system_one_questions() });
    let small = compressed(asked.to_string().as_bytes());
    let reply = post("/v1/systemone", "zstd", &small).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let plain = server.post_ok("/v1/systemone", &asked).await;
    assert_eq!(reply.json()["answers"], plain["answers"]);
    // A large body, most of it white space.
    let large = compressed(format!("{}{asked}", " ".repeat(200_000)).as_bytes());
    let reply = post("/v1/systemone", "zstd", &large).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["answers"], plain["answers"]);
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 }),
        ),
        (
            "/v1/messages",
            json!({ "model": "demo", "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 }),
        ),
        (
            "/api/generate",
            json!({ "prompt": "Hi", "options": { "num_predict": 1 } }),
        ),
        ("/tokenize", json!({ "content": "Hi" })),
    ] {
        let reply = post(path, "zstd", &compressed(body.to_string().as_bytes())).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    }
    let bomb = compressed(&vec![b' '; 4 << 20]);
    assert!(bomb.len() < 1 << 20, "{}", bomb.len());
    let begun = Instant::now();
    for (encoding, body, status) in [
        ("zstd", &bomb[..], 413),
        ("zstd", &small[..small.len() / 2], 422),
        ("zstd", &[][..], 422),
        ("zstd", br#"{"state": "a"}"#, 422),
        ("gzip", &small, 415),
        ("zstd, gzip", &small, 415),
    ] {
        let reply = post("/v1/systemone", encoding, body).await;
        assert_eq!(reply.status, status, "{encoding}: {}", reply.text());
        assert!(!reply.json()["detail"].is_null(), "{}", reply.text());
    }
    let taken = begun.elapsed();
    assert!(taken < Duration::from_secs(20), "{taken:?}");
    let reply = post("/v1/chat/completions", "br", &small).await;
    let accepted = reply.header("accept-encoding");
    assert_eq!((reply.status, accepted), (415, Some("zstd")), "{}", reply.text());
    assert!(reply.text().contains("`br`"), "{}", reply.text());
    server.assert_idle().await;
}

//! Tests what llama.cpp's clients ask of a stream besides its text: the progress of the prompt, the timings of each piece, and the
//! probabilities of the draw.

use serde_json::{Value, json};
use tokenmill_sched::EngineConfig;
use tokenmill_server::ServerConfig;

use crate::server::{Setup, TestServer};

/// Reads the events of a stream, without the mark of its end.
async fn events(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let mut exchange = server.post_stream(path, body).await;
    assert_eq!(exchange.head().await.0, 200);
    let mut events = Vec::new();
    while let Some(data) = exchange.event().await {
        if data != "[DONE]" {
            events.push(serde_json::from_str(&data).expect("an event"));
        }
    }
    events
}

/// Returns the requests for a long prompt on both APIs.
fn long_requests() -> [(&'static str, Value); 2] {
    let message = json!({ "role": "user", "content": "one two three ".repeat(30) });
    let chat = json!({ "messages": [message], "max_tokens": 6 });
    let completion = json!({ "prompt": vec![5; 100], "n_predict": 6 });
    [("/completion", completion), ("/v1/chat/completions", chat)].map(|(path, mut body)| {
        for (name, value) in [("stream", true), ("ignore_eos", true)] {
            body[name] = value.into();
        }
        body["temperature"] = 0.into();
        (path, body)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_reports_the_progress_of_its_prompt() {
    let setup = Setup {
        engine: EngineConfig {
            max_step_tokens: 32,
            ..EngineConfig::default()
        },
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    for (path, mut body) in long_requests() {
        let plain = events(&server, path, &body).await;
        assert!(
            plain.iter().all(|event| event["prompt_progress"].is_null()),
            "{path}"
        );
        body["return_progress"] = true.into();
        body["cache_prompt"] = false.into();
        for is_cached in [false, true] {
            let events = events(&server, path, &body).await;
            let reports: Vec<&Value> = (events.iter())
                .map(|event| &event["prompt_progress"])
                .filter(|report| !report.is_null())
                .collect();
            let counts = |name: &str| -> Vec<u64> {
                let counts = reports
                    .iter()
                    .map(|report| report[name].as_u64().expect("a count"));
                counts.collect()
            };
            let (total, cache, processed) = (counts("total"), counts("cache"), counts("processed"));
            assert!(total.iter().all(|n| *n == total[0]), "{path}: {reports:?}");
            assert!(cache.iter().all(|n| *n == cache[0]), "{path}: {reports:?}");
            assert_eq!((cache[0] > 0, processed[0]), (is_cached, cache[0]), "{path}");
            assert_eq!(processed.last(), Some(&total[0]), "{path}");
            assert!(processed.is_sorted_by(|a, b| a < b), "{path}: {reports:?}");
            // A step computes up to 32 tokens.
            let least = (total[0] - cache[0]).div_ceil(32) as usize + 1;
            assert!(reports.len() >= least, "{path}: {reports:?}");
            assert!(reports.iter().all(|report| report["time_ms"].is_number()));
            // All come before the text.
            let first_text = events.iter().position(|event| {
                let delta = &event["choices"][0]["delta"]["content"];
                [delta, &event["content"]]
                    .into_iter()
                    .any(|text| text.as_str().is_some_and(|text| !text.is_empty()))
            });
            let last_report = events
                .iter()
                .rposition(|event| !event["prompt_progress"].is_null());
            assert!(
                first_text.is_none_or(|first| last_report < Some(first)),
                "{path}: {events:?}"
            );
            // The first of all requests has filled the cache.
            body["cache_prompt"] = true.into();
        }
        body["stream"] = false.into();
        let whole = server.post_ok(path, &body).await;
        assert!(
            whole["prompt_progress"].is_null() && whole["timings"].is_object(),
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_piece_of_a_stream_has_its_timings() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    for (path, mut body) in long_requests() {
        let plain = events(&server, path, &body).await;
        let n_timed = plain.iter().filter(|event| event["timings"].is_object()).count();
        assert_eq!(n_timed, 1, "{path}: the last piece has them");
        body["timings_per_token"] = true.into();
        let mut events = events(&server, path, &body).await;
        if path.starts_with("/v1") {
            let role = events.remove(0);
            assert!(role["timings"].is_null(), "{role}");
        }
        let counts: Vec<u64> = (events.iter())
            .map(|event| event["timings"]["predicted_n"].as_u64().expect("timings"))
            .collect();
        assert!(counts.is_sorted() && counts[0] >= 1, "{path}: {counts:?}");
        assert_eq!(counts.last(), Some(&6), "{path}");
        for event in &events {
            let timings = &event["timings"];
            let of = |name: &str| timings[name].as_f64().expect("a number");
            let end = &events[events.len() - 1]["timings"];
            assert_eq!(
                (&timings["prompt_n"], &timings["cache_n"]),
                (&end["prompt_n"], &end["cache_n"])
            );
            assert!(
                of("prompt_ms") > 0.0 && of("prompt_per_second") > 0.0,
                "{timings}"
            );
            // All have one clock.
            let end_ms = end["predicted_ms"].as_f64().expect("a number");
            assert!((0.0..=end_ms).contains(&of("predicted_ms")), "{timings}, {end}");
            // There is no rate before the second token: llama.cpp writes 0.
            let has_rate = of("predicted_n") >= 2.0;
            for name in ["predicted_per_second", "predicted_per_token_ms"] {
                let rate = timings[name].as_f64();
                assert!(
                    if has_rate {
                        rate > Some(0.0)
                    } else {
                        rate == Some(0.0)
                    },
                    "{timings}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probabilities_after_the_samplers_are_those_of_the_draw() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let message = json!({ "role": "user", "content": "Hi" });
    for temperature in [0.0, 1.0] {
        let completion = json!({ "prompt": "Once upon a time", "n_predict": 5, "n_probs": 10 });
        let chat = json!({ "messages": [message], "max_tokens": 5, "logprobs": true, "top_logprobs": 10, "top_k": 40 });
        for (path, mut body) in [("/completion", completion), ("/v1/chat/completions", chat)] {
            for (name, value) in [
                ("ignore_eos", json!(true)),
                ("temperature", json!(temperature)),
                ("seed", json!(3)),
            ] {
                body[name] = value;
            }
            let plain = server.post_ok(path, &body).await;
            body["post_sampling_probs"] = true.into();
            let scored = server.post_ok(path, &body).await;
            let tokens = |answer: &Value| -> Vec<Value> {
                let lists = [
                    &answer["completion_probabilities"],
                    &answer["choices"][0]["logprobs"]["content"],
                ];
                lists
                    .into_iter()
                    .find_map(Value::as_array)
                    .expect("scores")
                    .clone()
            };
            assert!(
                tokens(&plain)
                    .iter()
                    .all(|token| token["logprob"].is_number() && token["prob"].is_null())
            );
            let tokens = tokens(&scored);
            assert_eq!(tokens.len(), 5);
            for token in &tokens {
                assert!(
                    token["logprob"].is_null() && token["top_logprobs"].is_null(),
                    "{token}"
                );
                let own = token["prob"].as_f64().expect("a number");
                let top = token["top_probs"].as_array().expect("a list");
                let shares: Vec<f64> = top
                    .iter()
                    .map(|top| top["prob"].as_f64().expect("a number"))
                    .collect();
                assert_eq!(shares.len(), 10);
                assert!(shares.is_sorted_by(|a, b| a >= b), "{token}");
                assert!(
                    own > 0.0 && own <= 1.0 && shares.iter().sum::<f64>() <= 1.0 + 1e-5,
                    "{token}"
                );
                if temperature == 0.0 {
                    assert_eq!((own, shares[0], shares[1]), (1.0, 1.0, 0.0), "{token}");
                }
            }
            if temperature == 0.0 {
                let said =
                    |answer: &Value| [answer["content"].clone(), answer["choices"][0]["message"].clone()];
                assert_eq!(said(&plain), said(&scored));
            }
            if path == "/completion" {
                assert_eq!(scored["generation_settings"]["post_sampling_probs"], true);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_show_the_tags_of_the_model() {
    let tags = json!(["chat", "small"]);
    let setup = Setup {
        server: ServerConfig {
            model_tags: vec!["chat".to_owned(), "small".to_owned()],
            ..ServerConfig::default()
        },
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let list = server.get("/v1/models").await.json();
    let entries = list["data"].as_array().expect("a list");
    assert!(
        !entries.is_empty() && entries.iter().all(|entry| entry["tags"] == tags),
        "{list}"
    );
    let second = list["models"].as_array().expect("a list");
    assert!(second.iter().all(|entry| entry["tags"] == tags), "{list}");
    assert_eq!(server.get("/v1/models/demo").await.json()["tags"], tags);
}

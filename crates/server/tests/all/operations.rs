//! Operation of the server: health, metrics, the queue's bound, the orderly end.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::json;
use tokenmill_backend::StepError;
use tokenmill_sched::{EngineConfig, EngineState};
use tokenmill_server::Drained;
use tokio::{net::TcpStream, sync::watch};

use crate::{
    server::{Setup, TestServer, wait_until},
    wire::{Exchange, read_stream},
};

const COMPLETIONS: &str = "/v1/completions";

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_engine_shows_in_livez_and_recovers() {
    let (hang, blocked) = watch::channel(false);
    let mut setup = Setup {
        hang: Some(blocked),
        ..Setup::default()
    };
    setup.server.heartbeat_timeout = Duration::from_secs(1);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    assert_eq!(server.get("/livez").await.status, 200);
    hang.send_replace(true);
    let stuck = server
        .post_stream(COMPLETIONS, &json!({ "prompt": "One", "max_tokens": 2 }))
        .await;
    tokio::time::sleep(Duration::from_millis(1600)).await;
    let live = server.get("/livez").await;
    assert_eq!((live.status, &live.json()["status"]), (503, &json!("hung")));
    assert!(live.json()["heartbeat_age_s"].as_f64().expect("an age") > 1.0);
    assert_eq!(server.get("/readyz").await.status, 503);
    hang.send_replace(false);
    assert_eq!(stuck.reply().await.status, 200);
    assert_eq!(server.get("/livez").await.status, 200);
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_weights_were_changed_has_ended_and_says_so() {
    let reason = "model.gguf was changed while the model was in use".to_owned();
    let setup = Setup {
        step_error: Some(StepError::WeightsChanged { reason }),
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    assert_eq!(server.get("/health").await.status, 200);
    let body = json!({ "prompt": "One", "max_tokens": 2 });
    let reply = server.post(COMPLETIONS, &body).await;
    assert!(
        reply.status >= 500 && reply.text().contains("model.gguf was changed"),
        "{}",
        reply.text()
    );
    let engine = server.app.model.engine();
    wait_until("the engine has ended", || {
        matches!(engine.state(), EngineState::Ended(_))
    })
    .await;
    for path in ["/health", "/readyz"] {
        let reply = server.get(path).await;
        assert_eq!(
            (reply.status, &reply.json()["status"]),
            (503, &json!("engine ended")),
            "{path}"
        );
    }
    assert_eq!(server.get("/livez").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_with_a_time_to_come_back() {
    let (hang, blocked) = watch::channel(true);
    let setup = Setup {
        engine: EngineConfig {
            max_running: 1,
            max_queued: 3,
            ..EngineConfig::default()
        },
        hang: Some(blocked),
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let engine = server.app.model.engine();
    let body = json!({ "prompt": "One", "max_tokens": 2 });
    let mut waiting = vec![server.post_stream(COMPLETIONS, &body).await];
    wait_until("the engine has the first", || engine.queued().0 == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    while engine.queued().0 < 3 {
        let n_before = engine.queued().0;
        waiting.push(server.post_stream(COMPLETIONS, &body).await);
        wait_until("it waits", || engine.queued().0 > n_before).await;
    }
    let refused = server.post(COMPLETIONS, &body).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (429, &json!("queue_full"))
    );
    assert!(
        refused
            .header("retry-after")
            .is_some_and(|seconds| seconds.parse::<u64>().is_ok())
    );
    let ready = server.get("/readyz").await;
    assert_eq!(
        (ready.status, &ready.json()["status"]),
        (503, &json!("queue full"))
    );
    hang.send_replace(false);
    for exchange in waiting {
        assert_eq!(exchange.reply().await.status, 200);
    }
    server.assert_idle().await;
}

/// A server on which one sequence runs and two wait.
fn with_room_for_two() -> Setup {
    Setup {
        engine: EngineConfig {
            max_running: 1,
            max_queued: 2,
            ..EngineConfig::default()
        },
        ..Setup::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_takes_a_request_that_is_larger_than_its_queue() {
    let Some(server) = TestServer::start_with(with_room_for_two()).await else {
        return;
    };
    let inputs: Vec<String> = (0..6).map(|n| format!("{n} birds")).collect();
    let vectors = server.post("/v1/embeddings", &json!({ "input": inputs })).await;
    assert_eq!(vectors.status, 200, "{}", vectors.json());
    assert_eq!(vectors.json()["data"].as_array().map(Vec::len), Some(6));
    let body = json!({ "prompt": "One", "max_tokens": 2, "n": 4 });
    let samples = server.post(COMPLETIONS, &body).await;
    assert_eq!(samples.status, 200, "{}", samples.json());
    assert_eq!(samples.json()["choices"].as_array().map(Vec::len), Some(4));
    let body = json!({ "prompt": inputs, "max_tokens": 2 });
    let prompts = server.post(COMPLETIONS, &body).await;
    assert_eq!(prompts.status, 200, "{}", prompts.json());
    assert_eq!(prompts.json()["choices"].as_array().map(Vec::len), Some(6));
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_let_in_is_not_refused_midway() {
    let Some(server) = TestServer::start_with(with_room_for_two()).await else {
        return;
    };
    let engine = server.app.model.engine();
    let inputs: Vec<String> = (0..40).map(|n| format!("{n} birds in a tree")).collect();
    let vectors = server
        .post_stream("/v1/embeddings", &json!({ "input": inputs }))
        .await;
    wait_until("it is let in", || {
        engine.stats().n_running + engine.queued().0 > 0
    })
    .await;
    // Others take all room that they can get until it is answered.
    let is_answered = AtomicBool::new(false);
    let other = json!({ "prompt": "One", "max_tokens": 3 });
    let others = async || {
        let mut n_refused = 0;
        while !is_answered.load(Ordering::Relaxed) {
            let refused = server.post(COMPLETIONS, &other).await.status == 429;
            n_refused += usize::from(refused);
        }
        n_refused
    };
    let (reply, a, b, c, d) = tokio::join!(
        async {
            let reply = vectors.reply().await;
            is_answered.store(true, Ordering::Relaxed);
            reply
        },
        others(),
        others(),
        others(),
        others(),
    );
    assert_eq!(reply.status, 200, "{}", reply.json());
    assert_eq!(reply.json()["data"].as_array().map(Vec::len), Some(40));
    assert!(a + b + c + d > 0, "the queue was never full");
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_that_wait_for_room_have_the_deadline_of_their_request() {
    let mut setup = Setup::default();
    setup.engine.max_running = 1;
    setup.engine.max_queued = 1;
    setup.server.request_timeout = Some(Duration::from_millis(50));
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let inputs = vec!["Once upon a time, there was a little girl. ".repeat(20); 200];
    let reply = server.post("/v1/embeddings", &json!({ "input": inputs })).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (504, &json!("deadline_exceeded"))
    );
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_limits_end_answers_and_waits_with_504() {
    let mut setup = Setup::default();
    setup.engine.max_running = 1;
    setup.server.request_timeout = Some(Duration::from_millis(200));
    let Some(server) = TestServer::start_with(setup.clone()).await else {
        return;
    };
    // Eight samples of 400 tokens, one after the other.
    let long = json!({ "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "n": 8 });
    let reply = server.post(COMPLETIONS, &long).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (504, &json!("deadline_exceeded"))
    );
    // Time spent on scoring a prompt counts as well.
    let echo = json!({ "prompt": vec!["Once upon a time, there was a little girl. ".repeat(20); 40], "max_tokens": 1,
        "echo": true, "logprobs": 5 });
    let mut hurried = setup.clone();
    hurried.server.request_timeout = Some(Duration::from_millis(1));
    let hurried = TestServer::start_with(hurried).await.expect("the model is there");
    let reply = hurried.post(COMPLETIONS, &echo).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (504, &json!("deadline_exceeded"))
    );
    // A stream has begun with 200; its last event says so.
    let mut streaming = long.clone();
    streaming["stream"] = json!(true);
    let mut exchange = server.post_stream(COMPLETIONS, &streaming).await;
    assert_eq!(exchange.head().await.0, 200);
    let mut events = Vec::new();
    while let Some(event) = exchange.event().await {
        events.push(event);
    }
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let last: serde_json::Value = serde_json::from_str(&events.pop().expect("an event")).expect("JSON");
    assert_eq!(last["error"]["code"], "deadline_exceeded");

    let (hang, blocked) = watch::channel(true);
    setup.hang = Some(blocked);
    setup.server.request_timeout = None;
    setup.server.queue_timeout = Some(Duration::from_millis(100));
    let server = TestServer::start_with(setup).await.expect("the model is there");
    let engine = server.app.model.engine();
    let short = json!({ "prompt": "One", "max_tokens": 1 });
    let first = server.post_stream(COMPLETIONS, &short).await;
    wait_until("the engine has the first", || engine.queued().0 == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = server.post_stream(COMPLETIONS, &short).await;
    wait_until("the second waits", || engine.queued().0 == 2).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    hang.send_replace(false);
    let waited = second.reply().await;
    assert_eq!(
        (waited.status, &waited.json()["error"]["code"]),
        (504, &json!("deadline_exceeded"))
    );
    assert_eq!(first.reply().await.status, 200, "it began in time");
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_compiling_a_shape_counts_against_the_request() {
    let mut setup = Setup::default();
    setup.server.request_timeout = Some(Duration::from_millis(20));
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let names = (0..3900).map(|idx| {
        let pattern = format!("^{idx}[a-z]{{3}}$");
        (
            format!("name{idx}"),
            json!({ "type": "string", "pattern": pattern }),
        )
    });
    let schema = json!({ "type": "object", "properties": names.collect::<serde_json::Map<_, _>>() });
    let body = json!({ "prompt": "One", "max_tokens": 1, "guided_json": schema });
    let reply = server.post(COMPLETIONS, &body).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (504, &json!("deadline_exceeded"))
    );
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_finishes_what_runs_and_takes_nothing_new() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    // So long that it is seen running.
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": true, "stream": true });
    // A connection that is open already may still ask, and is told.
    let mut early = TcpStream::connect(&server.address).await.expect("a connection");
    let running = server.post_stream(COMPLETIONS, &body).await;
    wait_until("it runs", || server.app.model.engine().stats().n_running == 1).await;
    server.app.shutdown.begin();
    let streamed = read_stream(running, 1, |choice| &choice["text"]).await;
    assert!(streamed.reasons[0].is_some());
    wait_until("the listener is closed", || {
        std::net::TcpStream::connect(&server.address).is_err()
    })
    .await;
    let mut rest = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut early, &mut rest)
        .await
        .expect("an idle connection is closed");
    assert!(rest.is_empty());
    assert_eq!(server.run.await.expect("the server ends"), Drained::Whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_ends_in_time_even_if_an_answer_does_not() {
    let (hang, blocked) = watch::channel(true);
    let mut setup = Setup {
        hang: Some(blocked),
        ..Setup::default()
    };
    setup.server.drain_timeout = Duration::from_millis(300);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let _stuck = server.post_stream(COMPLETIONS, &json!({ "prompt": "One" })).await;
    wait_until("it is in the engine", || server.app.model.engine().queued().0 > 0).await;
    server.app.shutdown.begin();
    assert_eq!(server.run.await.expect("the server ends"), Drained::Cut);
    hang.send_replace(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ids_and_trace_context_pass_through() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("x-request-id", "mine-1"), ("traceparent", trace)];
    let reply = Exchange::send(&server.address, "GET", "/v1/models", &headers, b"")
        .await
        .reply()
        .await;
    assert_eq!(
        (reply.header("x-request-id"), reply.header("traceparent")),
        (Some("mine-1"), Some(trace))
    );
    let fresh = server.get("/nothing").await;
    assert!(
        fresh
            .header("x-request-id")
            .is_some_and(|id| id.starts_with("req_"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_are_strict_in_both_formats_and_count() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    for stream in [true, false] {
        let body =
            json!({ "prompt": "Once upon a time", "max_tokens": 7, "temperature": 0, "stream": stream });
        server.post(COMPLETIONS, &body).await;
    }
    server.post(COMPLETIONS, &json!({ "prompt": 1.5 })).await;
    // The engine publishes its figures after the events of a step have gone out.
    wait_until("the last step is in the figures", || {
        let stats = server.app.model.engine().stats();
        stats.generated_tokens == 14 && stats.n_running == 0 && stats.n_pages_in_use == 0
    })
    .await;
    let accept = [(
        "accept",
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2",
    )];
    let reply = Exchange::send(&server.address, "GET", "/metrics", &accept, b"")
        .await
        .reply()
        .await;
    assert!(
        reply
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("application/openmetrics-text; version=1.0.0"))
    );
    let body = reply
        .text()
        .strip_suffix("# EOF\n")
        .expect("the text ends with its end mark");
    let open = parse_families(body, "_total");
    // A client without an `accept` header gets the text format, which every scraper reads.
    let reply = server.get("/metrics").await;
    assert!(
        reply
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/plain; version=0.0.4"))
    );
    let samples = parse_families(reply.text(), "");
    let accept = [(
        "accept",
        "application/openmetrics-text;q=0.5,text/plain;version=0.0.4;q=0.9",
    )];
    let weighed = Exchange::send(&server.address, "GET", "/metrics", &accept, b"")
        .await
        .reply()
        .await;
    assert!(
        weighed
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/plain"))
    );
    let sums =
        ["prefill", "decode", "inference"].map(|name| samples[&format!("tokenmill_{name}_seconds_sum")]);
    assert!((sums[0] + sums[1] - sums[2]).abs() < 1e-6, "{sums:?}");
    assert_eq!(samples.len(), open.len());
    for (name, value) in [
        ("tokenmill_generated_tokens_total", 14.0),
        ("vllm:generation_tokens_total", 14.0),
        ("tokenmill_requests_running", 0.0),
        ("vllm:num_requests_waiting", 0.0),
        ("vllm:kv_cache_usage_perc", 0.0),
        ("tokenmill_window_pages", 0.0),
        ("tokenmill_window_pages_in_use", 0.0),
        ("tokenmill_prefix_cache_evicted_window_pages_total", 0.0),
        ("tokenmill_time_to_first_token_seconds_count", 2.0),
        ("tokenmill_inter_token_seconds_count", 12.0),
        ("vllm:e2e_request_latency_seconds_count", 2.0),
        ("vllm:time_per_output_token_seconds_count", 12.0),
        ("vllm:request_time_per_output_token_seconds_count", 2.0),
        ("vllm:request_prompt_tokens_count", 2.0),
        ("vllm:request_generation_tokens_count", 2.0),
        ("vllm:request_generation_tokens_sum", 14.0),
        ("vllm:request_queue_time_seconds_count", 2.0),
        ("vllm:request_prefill_time_seconds_count", 2.0),
        ("vllm:request_decode_time_seconds_count", 2.0),
        ("vllm:request_inference_time_seconds_count", 2.0),
        ("vllm:request_success_total", 2.0),
        ("tokenmill_requests_refused_total", 1.0),
        ("vllm:cache_config_info", 1.0),
    ] {
        assert_eq!(samples.get(name), Some(&value), "{name}");
    }
}

/// Parses figures as strictly as the specifications of both formats ask: every sample belongs to the family declared
/// before it, families do not repeat, suffixes fit the type, histograms are cumulative, no line is empty or another
/// comment. The formats differ in what follows a counter's declared name. Sums the samples of each name over their
/// labels, histogram buckets left out.
fn parse_families(body: &str, counter_suffix: &str) -> HashMap<String, f64> {
    let mut families: HashMap<String, String> = HashMap::new();
    let mut family = String::new();
    let mut samples = HashMap::new();
    let mut bucket_before: Option<(String, f64)> = None;
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
            assert!(
                families.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{name} is declared twice"
            );
            name.clone_into(&mut family);
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(!rest.is_empty());
        } else {
            assert!(!line.starts_with('#') && !line.is_empty(), "{line:?}");
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            let value: f64 = value.parse().expect("a number");
            let name = series.split('{').next().expect("a name");
            let suffix = name
                .strip_prefix(&family)
                .unwrap_or_else(|| panic!("{line} is not of {family}"));
            let allowed: &[&str] = match families[&family].as_str() {
                "gauge" => &[""],
                "counter" => &[counter_suffix],
                _ => &["_bucket", "_sum", "_count"],
            };
            assert!(allowed.contains(&suffix), "{line}");
            if suffix == "_bucket" {
                if let Some((before, smaller)) = bucket_before.replace((family.clone(), value))
                    && before == family
                {
                    assert!(value >= smaller, "{line}");
                }
                continue;
            }
            assert!(!name.ends_with("_total") || value >= 0.0);
            *samples.entry(name.to_owned()).or_insert(0.0) += value;
        }
    }
    samples
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_the_path_as_it_was_called() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    for path in ["/models/unload", "/v1/models/unload"] {
        let refused = server.post(path, &json!({ "model": "demo" })).await;
        assert_eq!(refused.status, 501, "{}", refused.text());
        let begin = format!("\"{path} is not implemented: this server has one model");
        assert!(refused.text().contains(&begin), "{}", refused.text());
        let wrong = server.get(path).await;
        assert_eq!(wrong.status, 405, "{}", wrong.text());
        assert!(
            wrong.text().contains(&format!("\"{path} takes POST, not GET\"")),
            "{}",
            wrong.text()
        );
    }
}

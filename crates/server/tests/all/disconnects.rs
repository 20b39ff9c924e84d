//! Clients that leave, lag or half-leave: their pages are freed, and other requests are unaffected.

use std::time::Duration;

use serde_json::{Value, json};
use tokenmill_sched::EngineConfig;
use tokio::{io::AsyncWriteExt, sync::watch};

use crate::{
    server::{Setup, TestServer, wait_until},
    wire::{Exchange, read_stream},
};

const COMPLETIONS: &str = "/v1/completions";

fn long(is_stream: bool) -> Value {
    // Chat requests may continue past the end of the text.
    json!({ "messages": [{ "role": "user", "content": "Tell me a story." }], "ignore_eos": true,
            "temperature": 0, "max_tokens": 400, "stream": is_stream })
}

/// Steps that the engine may begin after a client has left and before its pages are free: the one that runs, and the
/// one that is planned while the news arrives.
const MAX_LATE_STEPS: u64 = 2;

#[tokio::test(flavor = "multi_thread")]
async fn leaving_frees_the_pages_within_a_step_in_every_state() {
    let (hang, blocked) = watch::channel(false);
    let setup = Setup {
        engine: EngineConfig {
            max_running: 1,
            ..EngineConfig::default()
        },
        hang: Some(blocked),
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let engine = server.app.model.engine();
    let steps = || engine.stats().scheduler.steps;
    for is_stream in [true, false] {
        // Decoding.
        let mut exchange = server.post_stream("/v1/chat/completions", &long(is_stream)).await;
        if is_stream {
            exchange.head().await;
            for _ in 0..4 {
                exchange.event().await.expect("an event");
            }
        } else {
            wait_until("it decodes", || engine.stats().generated_tokens > 4).await;
        }
        drop(exchange);
        // The engine hangs from here on, so that its steps can be counted once the news is there.
        hang.send_replace(true);
        tokio::time::sleep(Duration::from_millis(200)).await;
        let before = steps();
        hang.send_replace(false);
        wait_until("its pages are free", || engine.stats().n_pages_in_use == 0).await;
        assert!(steps() <= before + MAX_LATE_STEPS, "{} steps", steps() - before);

        // Prefilling: the engine hangs in the first step.
        hang.send_replace(true);
        let prefilling = server.post_stream("/v1/chat/completions", &long(is_stream)).await;
        wait_until("it is in the engine", || {
            engine.stats().n_running + engine.queued().0 > 0
        })
        .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        // Queued: another waits behind it.
        let queued = server.post_stream("/v1/chat/completions", &long(is_stream)).await;
        wait_until("the second waits", || engine.queued().0 >= 1).await;
        drop((prefilling, queued));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let before = steps();
        hang.send_replace(false);
        wait_until("all is free", || {
            engine.stats().n_pages_in_use == 0 && engine.queued() == (0, 0)
        })
        .await;
        assert!(steps() <= before + MAX_LATE_STEPS);
        server.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_connection_counts_as_gone() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let engine = server.app.model.engine();
    let mut exchange = server.post_stream("/v1/chat/completions", &long(true)).await;
    exchange.head().await;
    exchange.event().await.expect("an event");
    exchange.stream.get_mut().shutdown().await.expect("half a close");
    wait_until("its pages are free", || engine.stats().n_pages_in_use == 0).await;
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_every_token_and_holds_nobody_up() {
    let setup = Setup {
        engine: EngineConfig {
            stream_buffer: 4,
            ..EngineConfig::default()
        },
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    // Log-probabilities make each chunk large, so that the system's buffers fill up.
    let body = json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 400, "n": 8, "logprobs": 20, "seed": 1 });
    let whole = server.post_ok(COMPLETIONS, &body).await;
    let mut streaming = body.clone();
    streaming["stream"] = json!(true);
    let slow = server.post_stream(COMPLETIONS, &streaming).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    // Meanwhile others are served as ever.
    let quick = json!({ "prompt": "The cat", "temperature": 0, "max_tokens": 8 });
    for _ in 0..4 {
        server.post_ok(COMPLETIONS, &quick).await;
    }
    let streamed = read_stream(slow, 8, |choice| &choice["text"]).await;
    let texts: Vec<&str> = whole["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(|c| c["text"].as_str().expect("text"))
        .collect();
    assert_eq!(streamed.texts, texts);
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_writer_is_cut_off_in_time() {
    let mut setup = Setup::default();
    setup.server.body_timeout = Duration::from_millis(300);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"pro";
    let reply = Exchange::write(&server.address, head).await.reply().await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (408, &json!("request_timeout"))
    );
    server.assert_idle().await;
}

/// Requests of a soak test; `TOKENMILL_SOAK_REQUESTS=10000` makes it a long one.
fn n_soak_requests() -> u64 {
    let asked = std::env::var("TOKENMILL_SOAK_REQUESTS").ok();
    asked.map_or(400, |n| n.parse().expect("TOKENMILL_SOAK_REQUESTS is a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_leave_at_any_moment_leave_nothing_behind() {
    soak(Setup::default()).await;
}

/// Steps that take no time put the clients' ends at other moments: while a request waits, begins and ends.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_leave_a_fast_engine_leave_nothing_behind() {
    soak(Setup {
        babbles: true,
        ..Setup::default()
    })
    .await;
}

/// Sends requests of every kind and leaves them at random moments: some are answered whole, some are left while they
/// are written, queued, computed or read, some close only their sending side.
async fn soak(setup: Setup) {
    const SIDE_BY_SIDE: usize = 40;
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let mut leaving = tokio::task::JoinSet::new();
    for i in 0..n_soak_requests() {
        let prompt = format!("Once upon a time number {}", random(9));
        let is_stream = random(2) == 0;
        let n_tokens = 1 + random(40);
        let (path, body) = match random(8) {
            0 => ("/v1/embeddings", json!({ "input": [prompt, "another"] })),
            1 => (
                "/v1/messages",
                json!({ "messages": [{ "role": "user", "content": prompt }], "max_tokens": n_tokens, "stream": is_stream }),
            ),
            2 => (
                "/v1/responses",
                json!({ "input": prompt, "max_output_tokens": n_tokens, "stream": is_stream, "seed": i }),
            ),
            3 => (
                COMPLETIONS,
                json!({ "prompt": [prompt, "The cat"], "max_tokens": n_tokens, "echo": true, "logprobs": 2, "stream": is_stream }),
            ),
            4 => (
                "/v1/chat/completions",
                json!({ "messages": [{ "role": "user", "content": prompt }], "max_tokens": n_tokens, "n": 1 + random(3),
                        "ignore_eos": true, "stream": is_stream }),
            ),
            _ => (
                COMPLETIONS,
                json!({ "prompt": prompt, "n": 1 + random(3), "seed": i, "max_tokens": n_tokens, "stream": is_stream }),
            ),
        };
        let body = body.to_string();
        let mut bytes = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let end = random(6);
        if end == 0 {
            bytes.truncate(random(bytes.len() as u64) as usize);
        }
        let patience = Duration::from_micros(random(60_000));
        let address = server.address.clone();
        leaving.spawn(async move {
            let mut exchange = Exchange::write(&address, bytes.as_bytes()).await;
            match end {
                1 => {
                    tokio::time::sleep(patience).await;
                    let _ = exchange.stream.get_mut().shutdown().await;
                    tokio::time::sleep(patience).await;
                }
                2 => {
                    let (status, _) = exchange.head().await;
                    assert_eq!(status, 200);
                }
                _ => tokio::time::sleep(patience).await,
            }
        });
        if leaving.len() > SIDE_BY_SIDE {
            leaving.join_next().await.expect("a client").expect("it leaves");
        }
    }
    while let Some(left) = leaving.join_next().await {
        left.expect("it leaves");
    }
    server.assert_idle().await;
}

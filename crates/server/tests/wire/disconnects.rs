//! Clients that leave, lag or half-leave: their pages come back, and nobody else notices.

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
    // Chat requests may go on past the end of the text.
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
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{\"pro";
    let reply = Exchange::write(&server.address, head).await.reply().await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (408, &json!("request_timeout"))
    );
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_requests_that_leave_at_any_moment_leave_nothing_behind() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let mut leaving = Vec::new();
    for i in 0..400_u64 {
        let body = json!({ "prompt": format!("Once upon a time number {}", random(9)), "n": 1 + random(3), "seed": i,
                           "max_tokens": 1 + random(40), "stream": random(2) == 0 });
        let exchange = server.post_stream(COMPLETIONS, &body).await;
        let patience = Duration::from_micros(random(40_000));
        leaving.push(tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            drop(exchange);
        }));
        if leaving.len() > 30 {
            leaving.remove(0).await.expect("it leaves");
        }
    }
    for task in leaving {
        task.await.expect("it leaves");
    }
    server.assert_idle().await;
}

//! Attacks by a hostile client or page: bodies that grow, streams that are never read, foreign pages, other
//! keys' caches.

use std::time::{Duration, Instant};

use axum::{body::Bytes, http::Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokenmill_sched::EngineConfig;
use tokenmill_server::{ApiKeys, ServerConfig};
use tokio::net::TcpStream;

use crate::{
    server::{Setup, TestServer, wait_until},
    wire::{Exchange, Reply},
};

const COMPLETIONS: &str = "/v1/completions";

async fn send(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    Exchange::send(&server.address, method, path, headers, body.as_bytes())
        .await
        .reply()
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_whose_values_outgrow_it_is_refused_before_it_is_parsed() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let began = Instant::now();
    for item in [r#"{"":{}}"#, "[[]]", "1"] {
        let body = format!(
            r#"{{"prompt":[{}]}}"#,
            vec![item; (7 << 20) / (item.len() + 1)].join(",")
        );
        let reply = send(&server, "POST", COMPLETIONS, &[], &body).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (413, &json!("too_many_values")),
            "{item}"
        );
    }
    // Weighing is a look at each byte, also on a busy machine.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_bodies_at_once_are_all_answered() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let content = "word ".repeat(40_000);
    let body = json!({ "content": content });
    let ask = || server.post("/tokenize", &body);
    let replies = futures_util::future::join_all((0..8).map(|_| ask())).await;
    let counts: Vec<Value> = replies
        .iter()
        .map(|reply| reply.json()["count"].clone())
        .collect();
    assert!(counts[0].as_u64().expect("a count") >= 40_000);
    assert!(counts.iter().all(|count| *count == counts[0]));
    // An answer in parts is one JSON text.
    let strings = json!({ "content": content, "return_token_strs": true, "with_pieces": true });
    let reply = server.post_ok("/tokenize", &strings).await;
    let lengths = ["tokens", "token_strs"].map(|list| reply[list].as_array().expect("a list").len());
    assert_eq!(lengths.map(Value::from), [counts[0].clone(), counts[0].clone()]);
    assert_eq!(reply["tokens"][7]["piece"], reply["token_strs"][7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_of_http2_that_nobody_reads_give_their_room_back() {
    let mut setup = Setup::default();
    setup.server.max_body_bytes = 68 << 10;
    setup.server.body_timeout = Duration::from_secs(10);
    setup.server.write_timeout = Duration::from_millis(400);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let stream = TcpStream::connect(&server.address).await.expect("a connection");
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    let body = json!({ "content": "word ".repeat(13_500) }).to_string();
    // There is room for 33 of them.
    let mut silent = Vec::new();
    for no in 0..40 {
        let request = Request::post("http://localhost/tokenize")
            .body(Full::new(Bytes::from(body.clone())))
            .expect("a request");
        let reply = sender.send_request(request).await.expect("a response");
        assert_eq!(reply.status(), 200, "request {no}");
        silent.push(reply);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_pages_and_foreign_names_reach_no_endpoint() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = r#"{"prompt":"One","max_tokens":1}"#;
    let foreign = [("origin", "https://evil.example"), ("content-type", "text/plain")];
    let refused = send(&server, "POST", COMPLETIONS, &foreign, body).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (403, &json!("forbidden_origin"))
    );
    for path in ["/v1/models", "/metrics", "/"] {
        assert_eq!(
            send(&server, "GET", path, &foreign, "").await.status,
            403,
            "{path}"
        );
    }
    let message = send(&server, "POST", "/v1/messages", &foreign, "{}").await;
    assert_eq!(message.json()["error"]["type"], "permission_error");
    let own = [("origin", "http://localhost")];
    assert_eq!(send(&server, "POST", COMPLETIONS, &own, body).await.status, 200);

    let rebound = "POST /v1/completions HTTP/1.1\r\nhost: evil.example\r\norigin: http://evil.example\r\n\
                   content-length: 2\r\nconnection: close\r\n\r\n{}";
    let refused = Exchange::write(&server.address, rebound.as_bytes())
        .await
        .reply()
        .await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (403, &json!("forbidden_host"))
    );
    let absolute =
        "GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let refused = Exchange::write(&server.address, absolute.as_bytes())
        .await
        .reply()
        .await;
    assert_eq!(refused.status, 403);
    let silent = "GET /v1/models HTTP/1.0\r\n\r\n";
    assert_eq!(
        Exchange::write(&server.address, silent.as_bytes())
            .await
            .reply()
            .await
            .status,
        200,
        "no browser leaves the name out"
    );
}

/// A request whose stream is large and long.
fn flood(n: u32) -> Value {
    json!({ "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": n, "logprobs": 20 })
}

/// An engine that notices soon when a stream is not read.
fn impatient() -> Setup {
    Setup {
        engine: EngineConfig {
            stream_buffer: 4,
            max_running: 4,
            max_queued: 30,
            ..EngineConfig::default()
        },
        ..Setup::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_nobody_reads_hold_no_place_in_the_queue() {
    let Some(server) = TestServer::start_with(impatient()).await else {
        return;
    };
    let engine = server.app.model.engine();
    let silent = server.post_stream(COMPLETIONS, &flood(24)).await;
    wait_until("its samples wait for it", || {
        engine.queued().0 == 0 && engine.stats().n_paused == 24
    })
    .await;
    assert_eq!(server.get("/readyz").await.status, 200);
    let short = json!({ "prompt": "One", "max_tokens": 2 });
    let ask = || server.post(COMPLETIONS, &short);
    // With the 24 they are more than the queue holds, so one wave passes only if sleeping samples hold no place. Samples wake
    // until the connection's own buffers are full, so the first waves may meet some.
    let mut n_waves = 0;
    loop {
        let replies = futures_util::future::join_all((0..20).map(|_| ask())).await;
        if replies.iter().all(|reply| reply.status == 200) {
            break;
        }
        n_waves += 1;
        assert!(n_waves < 100, "a place in the queue for every request");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Read at last, it is whole.
    let streamed = crate::wire::read_stream(silent, 24, |choice| &choice["text"]).await;
    assert!(
        streamed
            .reasons
            .iter()
            .all(|reason| reason.as_deref() == Some("length"))
    );
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_reads_is_ended() {
    let mut setup = impatient();
    setup.server.write_timeout = Duration::from_millis(400);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let engine = server.app.model.engine();
    let silent = server.post_stream(COMPLETIONS, &flood(24)).await;
    wait_until("it has begun", || engine.stats().generated_tokens > 8).await;
    wait_until("its pages are free", || {
        engine.stats().n_pages_in_use == 0 && engine.stats().n_paused == 0
    })
    .await;
    drop(silent);
    // A reader that is only slow is left alone.
    let mut slow = server.post_stream(COMPLETIONS, &flood(1)).await;
    assert_eq!(slow.head().await.0, 200);
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        slow.event().await.expect("an event");
    }
    let mut newest = String::new();
    while let Some(event) = slow.event().await {
        newest = event;
    }
    assert_eq!(newest, "[DONE]");
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_http2_that_nobody_reads_is_ended_and_its_connection_goes_on() {
    let mut setup = impatient();
    setup.server.write_timeout = Duration::from_millis(400);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let engine = server.app.model.engine();
    let stream = TcpStream::connect(&server.address).await.expect("a connection");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    let request = |body: &Value| {
        Request::post(format!("http://localhost{COMPLETIONS}"))
            .body(Full::new(Bytes::from(body.to_string())))
            .expect("a request")
    };
    let silent = sender.send_request(request(&flood(8))).await.expect("a response");
    wait_until("it has begun", || engine.stats().generated_tokens > 8).await;
    wait_until("its pages are free", || {
        engine.stats().n_pages_in_use == 0 && engine.stats().n_paused == 0
    })
    .await;
    let short = json!({ "prompt": "One", "max_tokens": 2 });
    let reply = sender.send_request(request(&short)).await.expect("a response");
    assert_eq!(reply.status(), 200);
    let text = silent.into_body().collect().await.expect("the rest").to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("stream_stalled") && text.ends_with("data: [DONE]\n\n"));
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_prefixes_are_found_by_their_own_key_and_salt_only() {
    let setup = Setup {
        server: ServerConfig {
            api_keys: ApiKeys::from_lines("alpha\nbeta"),
            ..ServerConfig::default()
        },
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let prompt = "Once upon a time there was a secret that only one knew. ".repeat(3);
    let n_cached = async |key: &str, salt: Option<&str>| {
        let body = json!({ "prompt": prompt, "max_tokens": 1, "cache_salt": salt }).to_string();
        let reply = send(&server, "POST", COMPLETIONS, &[("x-api-key", key)], &body)
            .await
            .json();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .expect("a count")
    };
    assert_eq!(n_cached("alpha", None).await, 0);
    let own = n_cached("alpha", None).await;
    assert!(own > 0);
    assert_eq!(n_cached("beta", None).await, 0, "another key finds nothing");
    assert_eq!(n_cached("beta", None).await, own);
    assert_eq!(n_cached("alpha", Some("a")).await, 0, "nor does another salt");
    assert_eq!(n_cached("alpha", Some("a")).await, own);
    assert_eq!(n_cached("beta", Some("a")).await, 0);
    let empty = r#"{"prompt":"a","cache_salt":""}"#;
    let refused = send(&server, "POST", COMPLETIONS, &[("x-api-key", "alpha")], empty).await;
    assert_eq!(refused.json()["error"]["param"], "cache_salt");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_writes_is_not_passed_on_unchecked() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let long = format!("/{}", "x".repeat(60_000));
    let reply = send(&server, "GET", &long, &[("traceparent", "<not a trace>")], "").await;
    assert_eq!((reply.status, reply.header("traceparent")), (404, None));
    assert!(reply.body.len() < 1000, "{} bytes", reply.body.len());
    let all: serde_json::Map<String, Value> = (0..server.app.model.tokenizer().n_vocab())
        .map(|id| (id.to_string(), json!(-100)))
        .collect();
    for mut body in [
        json!({ "prompt": "a", "logit_bias": all }),
        json!({ "prompt": "a", "chat_template_kwargs": {} }),
    ] {
        body["max_tokens"] = json!(1);
        assert_eq!(server.post(COMPLETIONS, &body).await.status, 400);
    }
    let smuggled = json!({
        "messages": [{ "role": "user", "content": "a" }],
        "chat_template_kwargs": { "messages": [{ "role": "system", "content": "b" }] },
    });
    for path in [
        "/v1/chat/completions",
        "/v1/chat/completions/render",
        "/apply-template",
        "/tokenize",
    ] {
        let reply = server.post(path, &smuggled).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!("chat_template_kwargs.messages")),
            "{path}"
        );
    }
}

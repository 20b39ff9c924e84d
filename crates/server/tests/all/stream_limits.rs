//! Tests the limits of HTTP/2 streams and idle connections: an unread answer is reset and releases its model, and idle connections close to
//! make room.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokenmill_server::{ModelLimits, ModelSpec, ServerConfig};
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};

use crate::{
    demo::demo_path,
    server::{Setup, TestServer},
    several::{CHAT, Several, Speaker, chat},
    wire::Exchange,
};

const SOON: Duration = Duration::from_secs(10);

/// Opens a connection whose streams have a window of `window` bytes; returns also the task that drives it.
async fn connect(address: &str, window: u32) -> (SendRequest<Full<Bytes>>, JoinHandle<()>) {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/2");
    let ended = tokio::spawn(async move {
        let _ = connection.await;
    });
    (sender, ended)
}

async fn ask(sender: &mut SendRequest<Full<Bytes>>, path: &str, body: &Value) -> Response<Incoming> {
    let method = if body.is_null() { "GET" } else { "POST" };
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = Request::builder()
        .method(method)
        .uri(format!("http://localhost{path}"))
        .body(Full::new(Bytes::from(body)))
        .expect("a request");
    let response = timeout(SOON, sender.send_request(request)).await;
    let response = response.expect("an answer in time").expect("a response");
    assert_eq!(response.status(), 200, "{path}");
    response
}

/// Reads an answer to its end; `None` if it is reset.
async fn read(response: Response<Incoming>) -> Option<Bytes> {
    let whole = timeout(SOON, response.into_body().collect()).await;
    whole
        .expect("it ends in time")
        .ok()
        .map(http_body_util::Collected::to_bytes)
}

async fn status_of(address: &str, path: &str) -> u16 {
    let reply = timeout(SOON, Exchange::send(address, "GET", path, &[], b"").await.reply()).await;
    reply.expect("an answer in time").status
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_are_reset_whatever_they_are() {
    let mut setup = Setup::default();
    setup.server.write_timeout = Duration::from_millis(300);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let long =
        |stream: bool| json!({ "prompt": "Once", "max_tokens": 60, "ignore_eos": true, "stream": stream });
    let tokens = json!({ "content": "word ".repeat(20_000) });
    for window in [0, 1, 200] {
        let (mut sender, _connection) = connect(&server.address, window).await;
        let mut answers = Vec::new();
        for (path, body) in [
            ("/openapi.json", Value::Null),
            ("/v1/completions", long(false)),
            ("/v1/completions", long(true)),
            ("/tokenize", tokens.clone()),
        ] {
            answers.push(ask(&mut sender, path, &body).await);
        }
        tokio::time::sleep(Duration::from_millis(2400)).await;
        // The client gives credit only now, and finds that the streams are gone.
        for answer in answers {
            assert_eq!(read(answer).await, None, "with a window of {window}");
        }
        // The connection still works if its window fits an answer.
        if window > 100 {
            let live = read(ask(&mut sender, "/livez", &Value::Null).await).await;
            assert!(live.is_some());
        }
    }
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_slowly_gets_all_of_an_answer() {
    let mut setup = Setup::default();
    setup.server.write_timeout = Duration::from_millis(600);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let expected = Exchange::send(&server.address, "GET", "/openapi.json", &[], b"").await;
    let expected = expected.reply().await.body;
    let (mut sender, _connection) = connect(&server.address, 16 << 10).await;
    let mut body = ask(&mut sender, "/openapi.json", &Value::Null).await.into_body();
    let mut found = Vec::new();
    while let Some(frame) = body.frame().await {
        found.extend_from_slice(&frame.expect("no reset").into_data().expect("data"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_reads_holds_no_model() {
    if demo_path().is_none() {
        return;
    }
    let n_alive = Arc::default();
    let specs = ["anna", "berta"].map(|name| ModelSpec::new(name, Speaker::new(name, 4, &n_alive)));
    let limits = ModelLimits {
        budget_bytes: Some(4),
        ..ModelLimits::default()
    };
    let config = ServerConfig {
        write_timeout: Duration::from_millis(500),
        ..ServerConfig::default()
    };
    let server = Several::start(specs.into(), limits, config).await;
    let (mut sender, _connection) = connect(&server.address, 0).await;
    // A whole answer holds the model only while it is generated; a streamed one until it is reset.
    for stream in [false, true] {
        let mut body = chat("anna");
        body["stream"] = stream.into();
        let unread = ask(&mut sender, CHAT, &body).await;
        let begun = Instant::now();
        assert_eq!(server.says("berta").await, "berta");
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        drop(unread);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_requests_is_closed_and_one_with_a_request_is_not() {
    let mut setup = Setup {
        says: Some("word ".repeat(100)),
        step_time: Duration::from_millis(15),
        ..Setup::default()
    };
    setup.server.header_timeout = Duration::from_millis(300);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let (_silent, silent_ended) = connect(&server.address, 1 << 16).await;
    let (mut asking, asking_ended) = connect(&server.address, 1 << 16).await;
    let body = json!({ "prompt": "Once", "max_tokens": 80, "ignore_eos": true });
    // Generation takes longer than a connection may be idle.
    assert!(
        read(ask(&mut asking, "/v1/completions", &body).await)
            .await
            .is_some()
    );
    let begun = Instant::now();
    timeout(SOON, silent_ended)
        .await
        .expect("it is closed")
        .expect("no panic");
    timeout(SOON, asking_ended)
        .await
        .expect("it is closed")
        .expect("no panic");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_make_room_and_probes_find_a_place_among_busy_ones() {
    let mut setup = Setup {
        says: Some("word ".repeat(1000)),
        step_time: Duration::from_millis(20),
        ..Setup::default()
    };
    setup.server.max_connections = 8;
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let mut idle = Vec::new();
    for _ in 0..8 {
        let (mut sender, connection) = connect(&server.address, 1 << 16).await;
        read(ask(&mut sender, "/livez", &Value::Null).await).await;
        idle.push((sender, connection));
    }
    let begun = Instant::now();
    assert_eq!(status_of(&server.address, "/v1/models").await, 200);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    drop(idle);
    // Now every place has a running request.
    let body = json!({ "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true });
    let mut busy = Vec::new();
    while busy.len() < 8 {
        let (mut sender, connection) = connect(&server.address, 1 << 16).await;
        let answer = ask(&mut sender, "/v1/completions", &body).await;
        busy.push((sender, connection, answer));
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(status_of(&server.address, path).await, 200, "{path}");
    }
    assert_eq!(status_of(&server.address, "/v1/models").await, 503);
    drop(busy);
    let begun = Instant::now();
    while status_of(&server.address, "/v1/models").await != 200 {
        assert!(begun.elapsed() < SOON, "the places are free again");
    }
    server.assert_idle().await;
}

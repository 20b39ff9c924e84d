//! Streams in which nothing happens for a while: signs of life, and clients that take none.

use std::time::Duration;

use axum::{body::Bytes, http::Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::watch, time::sleep};

use crate::server::{Setup, TestServer};

/// A server that computes nothing yet and shows its life every 10 ms; what lets it compute; and a connection, each of whose
/// streams takes `window` bytes.
async fn start(window: u32) -> Option<(TestServer, watch::Sender<bool>, SendRequest<Full<Bytes>>)> {
    let (hang, hangs) = watch::channel(true);
    let mut setup = Setup {
        hang: Some(hangs),
        ..Setup::default()
    };
    setup.server.keep_alive = Duration::from_millis(10);
    setup.server.write_timeout = Duration::from_millis(300);
    let server = TestServer::start_with(setup).await?;
    let stream = TcpStream::connect(&server.address).await.expect("a connection");
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    Some((server, hang, sender))
}

fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    Request::post(format!("http://localhost{path}"))
        .body(Full::new(Bytes::from(body.to_string())))
        .expect("a request")
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_has_comments_between_events_and_spaces_between_lines() {
    let Some((server, hang, mut sender)) = start(65_535).await else {
        return;
    };
    let completion = json!({ "prompt": "One", "max_tokens": 4, "ignore_eos": true, "stream": true });
    let events = sender
        .send_request(post("/v1/completions", &completion))
        .await
        .expect("a response");
    let generate = json!({ "prompt": "One", "options": { "num_predict": 4 }, "stream": true });
    let lines = sender
        .send_request(post("/api/generate", &generate))
        .await
        .expect("a response");
    sleep(Duration::from_millis(200)).await;
    hang.send_replace(false);
    let events = events.into_body().collect().await.expect("a body").to_bytes();
    let events = String::from_utf8_lossy(&events);
    assert!(
        events.starts_with(':') && events.ends_with("data: [DONE]\n\n"),
        "{events:?}"
    );
    for event in events
        .split_terminator("\n\n")
        .filter(|event| !event.starts_with(':'))
    {
        assert!(event.starts_with("data: "), "{event:?}");
    }
    let lines = lines.into_body().collect().await.expect("a body").to_bytes();
    let lines = String::from_utf8_lossy(&lines);
    assert!(lines.starts_with(' '), "{lines:?}");
    for line in lines.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line:?}");
    }
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_no_sign_of_life_is_ended() {
    let Some((server, hang, mut sender)) = start(8).await else {
        return;
    };
    let many = json!({ "prompt": "One", "max_tokens": 400, "ignore_eos": true, "stream": true });
    let silent = sender
        .send_request(post("/v1/completions", &many))
        .await
        .expect("a response");
    let generate = json!({ "prompt": "One", "options": { "num_predict": 400 }, "stream": true });
    let other = sender
        .send_request(post("/api/generate", &generate))
        .await
        .expect("a response");
    sleep(Duration::from_secs(1)).await;
    hang.send_replace(false);
    for response in [silent, other] {
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let body = String::from_utf8_lossy(&body);
        assert!(
            body.contains("stream_stalled") || body.contains("the client read nothing of it"),
            "{body}"
        );
    }
    assert!(
        server.app.model.engine().stats().generated_tokens < 100,
        "both were cancelled"
    );
    server.assert_idle().await;
}

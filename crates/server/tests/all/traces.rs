//! Spans as a collector receives them, with the feature `otel`.

use std::time::Duration;

use serde_json::json;
use tokenmill_server::otel::Traces;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    runtime::Handle,
};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::{server::TestServer, wire::Exchange};

/// Reads one request and answers it with 200.
async fn take_request(listener: TcpListener) -> Vec<u8> {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let n = stream.read(&mut buffer).await.expect("a read");
        bytes.extend(&buffer[..n]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).expect("a length");
        let length: usize = length.lines().next().expect("a line").parse().expect("a number");
        if bytes.len() >= end + 4 + length {
            break;
        }
    }
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await
        .expect("a write");
    bytes
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

// One thread, so that the subscriber of this test sees only what the server's tasks say.
#[tokio::test]
async fn a_request_becomes_a_span_of_its_clients_trace() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let collector = tokio::spawn(take_request(listener));
    let traces =
        Traces::begin_at(&format!("http://{address}/v1/traces"), Handle::current()).expect("an exporter");
    let subscriber = tracing_subscriber::registry().with(traces.layer());
    let _guard = tracing::subscriber::set_default(subscriber);
    let Some(server) = TestServer::start().await else {
        return;
    };
    let headers = [(
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )];
    let body = json!({ "prompt": "One", "max_tokens": 3, "temperature": 0 }).to_string();
    let reply = Exchange::send(
        &server.address,
        "POST",
        "/v1/completions",
        &headers,
        body.as_bytes(),
    )
    .await
    .reply()
    .await;
    assert_eq!(reply.status, 200);
    // The span is made when the server is done with the response, which may be after the client is.
    server.assert_idle().await;
    tokio::task::spawn_blocking(move || traces.end())
        .await
        .expect("the exporter ends");
    let sent = tokio::time::timeout(Duration::from_secs(30), collector).await;
    let sent = sent.expect("the spans come in time").expect("a batch of spans");
    assert!(sent.starts_with(b"POST /v1/traces HTTP/1.1\r\n"));
    let trace_id = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
    let parent_id = 0xb7ad_6b71_6920_3331_u64.to_be_bytes();
    for part in [
        &trace_id[..],
        &parent_id,
        b"POST /v1/completions",
        b"gen_ai.usage.output_tokens",
        b"tokenmill",
    ] {
        assert!(contains(&sent, part), "{:?}", String::from_utf8_lossy(part));
    }
}

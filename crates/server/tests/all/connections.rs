//! Connections that are not honest requests: floods, silence, fragments, nonsense.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    server::{Setup, TestServer, served_again},
    wire::Exchange,
};

/// Reads until the server closes the connection.
async fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = async {
        let mut buffer = [0; 4096];
        // A reset is a close as well.
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            bytes.extend(&buffer[..n]);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reading)
        .await
        .expect("the server closes");
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_and_dawdling_connections_are_closed_in_time() {
    let mut setup = Setup::default();
    setup.server.header_timeout = Duration::from_millis(400);
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    for fragment in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\nhost:"] {
        let began = Instant::now();
        let mut stream = TcpStream::connect(&server.address).await.expect("a connection");
        stream.write_all(fragment).await.expect("a write");
        read_to_close(&mut stream).await;
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            String::from_utf8_lossy(fragment)
        );
    }
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_headers_and_nonsense_are_refused() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let many = "x-flood: y\r\n".repeat(20_000);
    let long = format!("x: {}\r\n", "y".repeat(1 << 20));
    for headers in [many, long] {
        let mut stream = TcpStream::connect(&server.address).await.expect("a connection");
        // The server may close while this is still being written.
        let _ = stream
            .write_all(format!("GET /livez HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes())
            .await;
        let answer = read_to_close(&mut stream).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
            "{answer}"
        );
    }
    for nonsense in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let mut stream = TcpStream::connect(&server.address).await.expect("a connection");
        stream.write_all(nonsense).await.expect("a write");
        stream.shutdown().await.expect("half a close");
        let answer = read_to_close(&mut stream).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
            "{answer}"
        );
    }
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_cost_nobody_anything() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(&server.address).await.expect("a connection"));
    }
    server.assert_idle().await;
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_serves_one_request_after_the_other() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = json!({ "prompt": "One", "max_tokens": 2, "temperature": 0 }).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // Two requests in one write, then a third.
    let mut exchange = Exchange::write(&server.address, request.repeat(2).as_bytes()).await;
    for i in 0..3 {
        let (status, headers) = exchange.head().await;
        assert_eq!(status, 200);
        let length = headers
            .iter()
            .find(|(name, _)| name == "content-length")
            .expect("a length")
            .1
            .parse()
            .expect("a number");
        let mut bytes = vec![0; length];
        exchange.stream.read_exact(&mut bytes).await.expect("the body");
        if i == 1 {
            exchange
                .stream
                .get_mut()
                .write_all(request.as_bytes())
                .await
                .expect("a write");
        }
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_serves_and_its_stale_file_is_replaced() {
    use std::sync::Arc;
    use tokenmill_server::{App, Listen, Server};

    let Some(tcp) = TestServer::start().await else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket that nobody listens on any more"));
    let TestServer { app, .. } = tcp;
    let mut config = (*app.config).clone();
    config.listen = Listen::Unix(path.clone());
    let shared = Arc::new(App::new(served_again(&app), config));
    let server = Server::bind(Arc::clone(&shared))
        .await
        .expect("the stale file is replaced");
    assert!(
        Server::bind(Arc::clone(&shared)).await.is_err(),
        "a live socket is left alone"
    );
    let run = tokio::spawn(server.run());
    let mut stream = tokio::net::UnixStream::connect(&path)
        .await
        .expect("a connection");
    stream
        .write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .expect("a write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    shared.shutdown.begin();
    run.await.expect("the server ends");
}

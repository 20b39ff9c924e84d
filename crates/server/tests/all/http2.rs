//! HTTP/2 and TLS: the same answers over both, many at once over one connection, and misuse of either.

use axum::body::Bytes;
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::{
    io::{Write as _, stderr},
    path::Path,
    process::Command,
    sync::Arc,
};
use tokenmill_server::{App, Listen, ServeError, Server, ServerConfig, TlsFiles};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use crate::server::{Setup, TestServer, served_again, wait_until};

const COMPLETIONS: &str = "/v1/completions";

/// An HTTP/2 connection over a stream.
async fn connect(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> SendRequest<Full<Bytes>> {
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("a handshake");
    tokio::spawn(connection);
    sender
}

fn post(body: &Value) -> Request<Full<Bytes>> {
    Request::post(format!("http://localhost{COMPLETIONS}"))
        .body(Full::new(Bytes::from(body.to_string())))
        .expect("a request")
}

async fn text_of(response: hyper::Response<Incoming>) -> String {
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    let answer: Value = serde_json::from_slice(&body).expect("JSON");
    answer["choices"][0]["text"].as_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_http2_connection_carries_many_answers_and_a_reset_frees_its_pages() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let bodies: Vec<Value> = (0..16)
        .map(|i| json!({ "prompt": format!("Story {i}"), "max_tokens": 12, "temperature": 0.8, "seed": i }))
        .collect();
    let mut alone = Vec::new();
    for body in &bodies {
        let answer = server.post_ok(COMPLETIONS, body).await;
        alone.push(answer["choices"][0]["text"].as_str().expect("text").to_owned());
    }
    let stream = TcpStream::connect(&server.address).await.expect("a connection");
    let mut sender = connect(stream).await;
    let together = join_all(bodies.iter().map(|body| {
        let answer = sender.send_request(post(body));
        async { text_of(answer.await.expect("an answer")).await }
    }))
    .await;
    assert_eq!(together, alone);

    let engine = server.app.model.engine();
    let long = json!({ "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true });
    let mut streaming = sender.send_request(post(&long)).await.expect("an answer");
    streaming
        .body_mut()
        .frame()
        .await
        .expect("a frame")
        .expect("data");
    drop(streaming);
    wait_until("its pages are free", || engine.stats().n_pages_in_use == 0).await;
    let again = sender.send_request(post(&bodies[3])).await.expect("an answer");
    assert_eq!(text_of(again).await, alone[3], "the connection still serves");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_http2_resets_leaves_nothing_behind() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = json!({ "prompt": "Once", "max_tokens": 400, "ignore_eos": true });
    for _ in 0..4 {
        let stream = TcpStream::connect(&server.address).await.expect("a connection");
        let mut sender = connect(stream).await;
        for _ in 0..300 {
            // The server may hang up on such a client, and then nothing more can be sent.
            if sender.ready().await.is_err() {
                break;
            }
            let asked = sender.send_request(post(&body));
            tokio::task::yield_now().await;
            drop(asked);
        }
    }
    server.assert_idle().await;
}

/// Writes a fresh identity for 127.0.0.1 into a folder; `None`, with a printed reason, without the tool that makes it.
fn identity(folder: &Path) -> Option<TlsFiles> {
    let files = TlsFiles {
        certificate: folder.join("cert.pem"),
        key: folder.join("key.pem"),
    };
    let made = Command::new("openssl")
        .args(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
                .split(' '),
        )
        .args([
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-keyout",
        ])
        .arg(&files.key)
        .arg("-out")
        .arg(&files.certificate)
        .output();
    match made {
        Ok(made) => assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr)),
        Err(error) => {
            // Not `eprintln!`, which the test harness shows of failed tests only.
            let _ = writeln!(
                stderr(),
                "skipped: openssl, which makes a certificate, cannot be run: {error}"
            );
            return None;
        }
    }
    Some(files)
}

async fn connect_tls(address: &str, certificate: &Path, protocol: &[u8]) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(certificate).expect("a certificate");
    roots.add(certificate).expect("a certificate");
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await.expect("a connection");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = stream.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_carries_both_versions_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(files) = identity(folder.path()) else {
        return;
    };
    let certificate = files.certificate.clone();
    let setup = Setup {
        server: ServerConfig {
            tls: Some(files),
            ..ServerConfig::default()
        },
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let body = json!({ "prompt": "Once", "max_tokens": 5, "temperature": 0 });
    let mut sender = connect(connect_tls(&server.address, &certificate, b"h2").await).await;
    let over_h2 = text_of(sender.send_request(post(&body)).await.expect("an answer")).await;

    let mut stream = connect_tls(&server.address, &certificate, b"http/1.1").await;
    let body = body.to_string();
    let request = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("a write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (_, answer) = answer.split_once("\r\n\r\n").expect("a body");
    let answer: Value = serde_json::from_str(answer).expect("JSON");
    assert_eq!(answer["choices"][0]["text"], over_h2);

    // Without TLS, and with bytes that are no TLS, there is no answer.
    let mut plain = TcpStream::connect(&server.address).await.expect("a connection");
    plain
        .write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .expect("a write");
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes).await;
    assert!(!bytes.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&bytes));
    let live = connect_tls(&server.address, &certificate, b"h2").await;
    drop(live);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_files_that_cannot_be_used_are_named() {
    let Some(TestServer { app, .. }) = TestServer::start().await else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(good) = identity(folder.path()) else {
        return;
    };
    let nonsense = folder.path().join("nonsense.pem");
    std::fs::write(&nonsense, "nothing of the kind").expect("a file");
    for (certificate, key, named) in [
        (&nonsense, &good.key, &nonsense),
        (&good.certificate, &nonsense, &nonsense),
        (
            &folder.path().join("missing.pem"),
            &good.key,
            &folder.path().join("missing.pem"),
        ),
    ] {
        let config = ServerConfig {
            listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
            tls: Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            }),
            ..ServerConfig::default()
        };
        let refused = Server::bind(Arc::new(App::new(served_again(&app), config)))
            .await
            .expect_err("the files cannot be used");
        let ServeError::Tls { path, .. } = &refused else {
            panic!("{refused}");
        };
        assert_eq!(Path::new(path), named);
    }
}

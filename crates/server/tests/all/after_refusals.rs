//! Tests the state of a connection and of the server after a refusal: the next request on the connection is answered right, nothing of the
//! refused one is read as another request, and nothing is held. And the limits of bodies and of whole requests, once as a connection and once
//! as a stream among others; those of writes and of idle connections are tested in `stream_limits`.
//!
//! `TOKENMILL_TEST_SECONDS` and `TOKENMILL_TEST_SEED` try more.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{Request, Response, StatusCode, body::Frame, body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokenmill_server::ApiKeys;
use tokenmill_testkit::{Random, rounds};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    bodies::{SEEDS, endpoint_of, mutate},
    server::{Setup, TestServer},
    wire::{Exchange, Reply},
};

const MAX_BODY_BYTES: usize = 20_000;

const SOON: Duration = Duration::from_secs(30);

/// Starts a server whose answers cost nothing, with a key.
async fn start() -> Option<TestServer> {
    let mut setup = Setup {
        babbles: true,
        ..Setup::default()
    };
    setup.server.api_keys = ApiKeys::from_lines("k");
    setup.server.max_body_bytes = MAX_BODY_BYTES;
    setup.server.max_n = 4;
    setup.server.max_prompts = 4;
    TestServer::start_with(setup).await
}

/// Holds a request as it is sent.
struct Sent {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Sent {
    fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            method: "POST",
            path: path.to_owned(),
            headers: vec![
                ("x-api-key", "k".to_owned()),
                ("content-type", "application/json".to_owned()),
            ],
            body: body.into(),
        }
    }

    fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Writes it for HTTP/1.1, with the length of its body or in chunks.
    fn bytes(&self, is_chunked: bool) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        if !self.headers.iter().any(|(name, _)| *name == "host") {
            head += "host: localhost\r\n";
        }
        for (name, value) in &self.headers {
            head.extend([name, ": ", value.as_str(), "\r\n"]);
        }
        if !is_chunked {
            let length = format!("content-length: {}\r\n\r\n", self.body.len());
            head.push_str(&length);
            return [head.as_bytes(), &self.body].concat();
        }
        head += "transfer-encoding: chunked\r\n\r\n";
        let mut bytes = head.into_bytes();
        for chunk in self.body.chunks(700) {
            bytes.extend(format!("{:x};x=y\r\n", chunk.len()).bytes());
            bytes.extend(chunk);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\nx-trailer: y\r\n\r\n");
        bytes
    }

    fn http2(&self) -> Request<BoxBody<Bytes, hyper::Error>> {
        let host = self.headers.iter().find(|(name, _)| *name == "host");
        let host = host.map_or("localhost", |(_, host)| host.as_str());
        let mut request = Request::builder()
            .method(self.method)
            .uri(format!("http://{host}{}", self.path));
        for (name, value) in self.headers.iter().filter(|(name, _)| *name != "host") {
            request = request.header(*name, value);
        }
        let body = Full::new(Bytes::from(self.body.clone()));
        request
            .body(body.map_err(|never| match never {}).boxed())
            .expect("a request")
    }
}

/// The body of a request within a request: if it is read as one, an answer comes too many.
const SMUGGLED: &str =
    "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\ncontent-length: 2\r\n\r\n{}";

/// Makes a request that is mostly refused.
fn bad(random: &mut Random) -> Sent {
    let filler = "x".repeat(random.below(MAX_BODY_BYTES));
    match random.below(12) {
        0 => Sent::post("/v1/completions", SMUGGLED).header("x-api-key", "other"),
        1 => Sent::post("/v1/nothing", format!("{SMUGGLED}{filler}")),
        2 => {
            let mut sent = Sent::post("/v1/completions", SMUGGLED);
            sent.method = *random.pick(&["GET", "PUT", "DELETE", "PATCH"]);
            sent
        }
        3 => Sent::post(
            "/v1/completions",
            format!(
                "{SMUGGLED}{}",
                "x".repeat(MAX_BODY_BYTES + random.below(MAX_BODY_BYTES))
            ),
        ),
        4 => Sent::post(
            "/v1/chat/completions",
            format!("[{}1]", "1,".repeat(random.below(9000))),
        ),
        5 => Sent::post("/v1/completions", SMUGGLED).header("origin", "https://evil.example"),
        6 => Sent::post("/v1/completions", SMUGGLED).header("host", "evil.example"),
        7 => {
            let coding = *random.pick(&["gzip", "br", "x"]);
            Sent::post("/tokenize", SMUGGLED).header("content-encoding", coding)
        }
        8 => Sent::post(
            "/v1/completions",
            [0xff, 0xfe, b'{'].repeat(1 + random.below(500)),
        ),
        9 => Sent::post(
            "/v1/completions",
            "[".repeat(1 + random.below(MAX_BODY_BYTES - 1)),
        ),
        _ => {
            let mut input = random.pick(&SEEDS).as_bytes().to_vec();
            for _ in 0..=random.below(4) {
                mutate(&mut input, random);
            }
            let Some((&letter, body)) = input.split_first() else {
                return Sent::post("/v1/completions", "");
            };
            Sent::post(endpoint_of(letter), body)
        }
    }
}

/// Waits for an answer, and says whether the connection ends before it.
async fn is_closed(connection: &mut Exchange, what: &str) -> bool {
    let begun = timeout(SOON, connection.stream.fill_buf()).await;
    let begun = begun.unwrap_or_else(|_| panic!("{what}: no answer"));
    begun.map_or(true, <[u8]>::is_empty)
}

/// Returns whether the server closes the connection after an answer.
fn closes(reply: &Reply) -> bool {
    reply.header("connection").is_some_and(|value| value == "close")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_request_of_a_connection_is_answered_right_after_any_refusal() {
    let Some(server) = start().await else {
        return;
    };
    let once = Sent::post("/tokenize", r#"{"content":"Once upon a time"}"#);
    let expected = Exchange::write(&server.address, &once.bytes(false))
        .await
        .reply()
        .await;
    assert_eq!(expected.status, 200, "{}", expected.text());
    let (mut n_kept, mut n_refused) = (0, 0);
    let mut connection = Exchange::write(&server.address, b"").await;
    for seed in rounds("refusals over HTTP/1.1", 300) {
        let mut random = Random::new(seed);
        let bad = bad(&mut random);
        let (is_chunked, is_pipelined) = (random.below(3) == 0, random.below(2) == 0);
        let mut bytes = bad.bytes(is_chunked);
        if is_pipelined {
            bytes.extend(once.bytes(false));
        }
        let what = format!(
            "seed {seed}, {} {} of {} bytes",
            bad.method,
            bad.path,
            bad.body.len()
        );
        // The server may close before it has read a body that is too large.
        let _ = connection.stream.get_mut().write_all(&bytes).await;
        if is_closed(&mut connection, &what).await {
            assert!(bad.body.len() > MAX_BODY_BYTES, "{what}: no answer");
            connection = Exchange::write(&server.address, b"").await;
            continue;
        }
        let reply = connection.next_reply().await;
        assert!(reply.status < 500, "{what}: {}", reply.text());
        n_refused += u32::from(reply.status >= 400);
        if !is_pipelined {
            let _ = connection.stream.get_mut().write_all(&once.bytes(false)).await;
        }
        // Then the next request goes over another connection.
        if closes(&reply) || is_closed(&mut connection, &what).await {
            connection = Exchange::write(&server.address, b"").await;
            continue;
        }
        let next = connection.next_reply().await;
        assert_eq!(
            (next.status, next.text()),
            (200, expected.text()),
            "{what}, answered {}",
            reply.status
        );
        n_kept += 1;
        if seed % 100 == 0 {
            assert_holds_nothing(&server).await;
        }
    }
    assert!(n_kept > n_refused / 2, "{n_kept} kept, {n_refused} refused");
    assert_holds_nothing(&server).await;
}

/// Checks that nothing runs, waits or has a page.
async fn assert_holds_nothing(server: &TestServer) {
    let engine = server.app.model.engine();
    crate::server::wait_until("nothing is held", || {
        let stats = engine.stats();
        stats.n_pages_in_use == 0 && stats.n_running == 0 && engine.queued() == (0, 0)
    })
    .await;
}

type Sender = SendRequest<BoxBody<Bytes, hyper::Error>>;

async fn connect(address: &str) -> Sender {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

async fn whole(response: Response<Incoming>) -> (StatusCode, Option<Bytes>) {
    let status = response.status();
    let body = timeout(SOON, response.into_body().collect()).await;
    let body = body.expect("it ends in time").ok();
    (status, body.map(http_body_util::Collected::to_bytes))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_stream_of_http2_harms_no_other() {
    let Some(server) = start().await else {
        return;
    };
    let once = Sent::post("/tokenize", r#"{"content":"Once upon a time"}"#);
    let mut sender = connect(&server.address).await;
    let expected = whole(sender.send_request(once.http2()).await.expect("a response")).await;
    assert_eq!(expected.0, 200);
    let mut n_refused = 0;
    for seed in rounds("refusals over HTTP/2", 300) {
        let mut random = Random::new(seed);
        let bad: Vec<Sent> = (0..=random.below(4)).map(|_| bad(&mut random)).collect();
        let answers: Vec<_> = bad.iter().map(|bad| sender.send_request(bad.http2())).collect();
        let good = sender.send_request(once.http2());
        for (answer, bad) in answers.into_iter().zip(&bad) {
            let what = format!(
                "seed {seed}, {} {} of {} bytes",
                bad.method,
                bad.path,
                bad.body.len()
            );
            let answer = timeout(SOON, answer)
                .await
                .unwrap_or_else(|_| panic!("{what}: no answer"));
            // A body that is too large may be answered before it was taken.
            let Ok(answer) = answer else { continue };
            let (status, _) = whole(answer).await;
            assert!(status.as_u16() < 500, "{what}: {status}");
            n_refused += u32::from(status.is_client_error());
        }
        let good = timeout(SOON, good).await.expect("an answer").expect("a response");
        assert_eq!(whole(good).await, expected, "seed {seed}");
        if seed % 100 == 0 {
            assert_holds_nothing(&server).await;
        }
    }
    assert!(n_refused > 0);
    assert_holds_nothing(&server).await;
}

/// A body that begins and never ends.
fn endless() -> BoxBody<Bytes, hyper::Error> {
    let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"{\"prompt\":")))]);
    BodyExt::boxed(StreamBody::new(first.chain(stream::pending())))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_limit_holds_for_one_stream_among_others() {
    let mut setup = Setup {
        says: Some("word ".repeat(400)),
        step_time: Duration::from_millis(10),
        ..Setup::default()
    };
    setup.engine.max_running = 2;
    setup.server.max_body_bytes = MAX_BODY_BYTES;
    setup.server.body_timeout = Duration::from_millis(300);
    setup.server.request_timeout = Some(Duration::from_millis(900));
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let long = |is_streamed: bool| {
        let body = json!({ "prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": is_streamed });
        Sent::post("/v1/completions", body.to_string())
    };
    let large = Sent::post("/v1/completions", "x".repeat(MAX_BODY_BYTES + 1));
    let short = Sent::post("/tokenize", r#"{"content":"Once"}"#);
    let code = |body: &[u8]| -> Value {
        let answer: Value = serde_json::from_slice(body).expect("JSON");
        answer["error"]["code"].clone()
    };

    // Each over a connection of its own.
    let slow = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"prompt\":";
    let mut own = Vec::new();
    for bytes in [slow.to_vec(), large.bytes(false), long(false).bytes(false)] {
        let reply = Exchange::write(&server.address, &bytes).await.reply().await;
        own.push((reply.status, code(&reply.body)));
    }
    assert_eq!(own[0], (408, json!("request_timeout")));
    assert_eq!(own[1].0, 413);
    assert_eq!(own[2], (504, json!("deadline_exceeded")));
    assert_holds_nothing(&server).await;

    // And all at once as streams of one connection, whose other streams are answered meanwhile.
    let mut sender = connect(&server.address).await;
    let other = sender.send_request(long(true).http2()).await.expect("a response");
    let slow = Request::post("http://localhost/v1/completions")
        .body(endless())
        .expect("a request");
    let slow = sender.send_request(slow);
    let large = sender.send_request(large.http2());
    let late = sender.send_request(long(false).http2());
    let queued = sender.send_request(long(true).http2());
    let begun = Instant::now();
    let mut n_answered = 0;
    let meanwhile = async {
        while begun.elapsed() < Duration::from_secs(2) {
            let answer = timeout(SOON, sender.send_request(short.http2())).await;
            let (status, _) = whole(answer.expect("an answer in time").expect("a response")).await;
            assert_eq!(status, 200);
            n_answered += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let limited = async {
        let mut found = Vec::new();
        for answer in [slow, large, late] {
            let answer = timeout(SOON, answer)
                .await
                .expect("an answer in time")
                .expect("a response");
            let (status, body) = whole(answer).await;
            found.push((status.as_u16(), code(&body.expect("a whole answer"))));
        }
        assert_eq!(found, own, "as over connections of their own");
        let (status, body) = whole(queued.await.expect("a response")).await;
        let body = body.expect("a whole stream");
        assert!(
            String::from_utf8_lossy(&body).contains("deadline_exceeded"),
            "{status}"
        );
    };
    tokio::join!(meanwhile, limited);
    assert!(n_answered > 5, "{n_answered}");
    drop(other);
    assert_holds_nothing(&server).await;
}

//! One request, with the time of every piece of its answer.
//!
//! It must disturb the measurement as little as possible: each request has a connection, opened before the
//! clock starts, and only the lines of the stream are parsed.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Bytes, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::failure::Failure;

/// The server that is measured.
pub(super) struct Target {
    authority: String,
    prefix: String,
    api_key: Option<String>,
    model: String,
}

/// The times and tokens of a request.
#[derive(Debug, Default, Clone)]
pub(super) struct Measured {
    /// When it was sent, since the beginning.
    pub(super) sent: Duration,
    /// When its first text came, since it was sent.
    pub(super) first: Option<Duration>,
    /// When each piece of text came, since it was sent.
    pub(super) pieces: Vec<Duration>,
    /// When each token was reported, since the request was sent, with its text or before; empty if the server reports none (`return_token_ids`).
    pub(super) tokens: Vec<Duration>,
    /// When its answer was complete, since it was sent.
    pub(super) total: Duration,
    /// Tokens of the prompt, as the server counts.
    pub(super) prompt_tokens: u64,
    /// Tokens of the answer, as the server counts; without its count, the pieces.
    pub(super) completion_tokens: u64,
    /// The server's own times (`timings`, as reported by llama.cpp's server and this one).
    pub(super) server_timings: Option<Value>,
    /// Why there is no whole answer.
    pub(super) error: Option<String>,
}

impl Measured {
    pub(super) fn to_json(&self) -> Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        serde_json::json!({
            "sent_ms": ms(self.sent),
            "first_ms": self.first.map(ms),
            "pieces_ms": self.pieces.iter().copied().map(ms).collect::<Vec<_>>(),
            "total_ms": ms(self.total),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "server_timings": self.server_timings,
            "error": self.error,
        })
    }
}

impl Target {
    /// Reads the address and asks the server for its model where none is named.
    pub(super) async fn new(
        url: &str,
        api_key: Option<String>,
        model: Option<String>,
    ) -> Result<Self, Failure> {
        let rest = url.strip_prefix("http://").ok_or_else(|| {
            let failure = Failure::usage(format!("`{url}` is not an http:// address"));
            match url.split_once("://") {
                None => failure.hint(format!("write http://{url}")),
                Some(("https", _)) => failure.hint("measure behind the proxy that ends TLS"),
                Some(_) => failure,
            }
        })?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = path
            .trim_end_matches('/')
            .trim_end_matches("v1")
            .trim_end_matches('/');
        let mut target = Self {
            authority: if authority.contains(':') {
                authority.to_owned()
            } else {
                format!("{authority}:80")
            },
            prefix: if prefix.is_empty() {
                String::new()
            } else {
                format!("/{prefix}")
            },
            api_key,
            model: model.unwrap_or_default(),
        };
        if target.model.is_empty() {
            let failed = |reason| Failure::work(format!("cannot list the models of {url}: {reason}"));
            let listing = async {
                let mut sender = target.connect().await?;
                let request = target.request("GET", "/v1/models", String::new())?;
                let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
                let status = response.status();
                if !status.is_success() {
                    return Err(match status.as_u16() {
                        401 | 403 => format!("it answers {status}; --api-key gives a key"),
                        _ => format!("it answers {status}"),
                    });
                }
                let body = response.into_body().collect().await.map_err(|e| e.to_string())?;
                serde_json::from_slice::<Value>(&body.to_bytes()).map_err(|e| e.to_string())
            };
            let list = listing.await.map_err(failed)?;
            list["data"][0]["id"]
                .as_str()
                .ok_or_else(|| failed("it lists none".to_owned()))?
                .clone_into(&mut target.model);
        }
        Ok(target)
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    async fn connect(&self) -> Result<http1::SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(&self.authority)
            .await
            .map_err(|error| format!("cannot connect to {}: {error}", self.authority))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            // Its end shows in the response.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn request(&self, method: &str, path: &str, body: String) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header("host", &self.authority)
            .header("content-type", "application/json");
        if let Some(key) = &self.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())
    }
}

/// Sends a request and measures its answer. Calls `on_gap` for each piece, with the time since the piece
/// before.
pub(super) async fn measure(
    target: &Target,
    path: &str,
    body: &str,
    sent: Duration,
    on_gap: &mut (dyn FnMut(Duration) + Send),
) -> Measured {
    let mut measured = Measured {
        sent,
        ..Measured::default()
    };
    if let Err(error) = try_measure(target, path, body, &mut measured, on_gap).await {
        measured.error = Some(error);
    }
    measured
}

async fn try_measure(
    target: &Target,
    path: &str,
    body: &str,
    measured: &mut Measured,
    on_gap: &mut (dyn FnMut(Duration) + Send),
) -> Result<(), String> {
    let mut sender = target.connect().await?;
    let request = target.request("POST", path, body.to_owned())?;
    let began = Instant::now();
    let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
    if response.status() != 200 {
        let status = response.status();
        let text = response.into_body().collect().await.map_err(|e| e.to_string())?;
        return Err(format!("{status}: {}", String::from_utf8_lossy(&text.to_bytes())));
    }
    read_stream(response, began, measured, on_gap).await?;
    measured.total = began.elapsed();
    if measured.completion_tokens == 0 {
        measured.completion_tokens = measured.pieces.len() as u64;
    }
    Ok(())
}

async fn read_stream(
    response: Response<Incoming>,
    began: Instant,
    measured: &mut Measured,
    on_gap: &mut (dyn FnMut(Duration) + Send),
) -> Result<(), String> {
    let mut body = response.into_body();
    let mut buffer = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        let now = began.elapsed();
        let Some(bytes) = frame.data_ref() else { continue };
        buffer.extend_from_slice(bytes);
        while let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let Some(data) = line.strip_prefix(b"data:") else {
                continue;
            };
            let data = data.trim_ascii();
            if data == b"[DONE]" {
                return Ok(());
            }
            let event: Value = serde_json::from_slice(data).map_err(|error| error.to_string())?;
            if let Some(message) = event["error"]["message"].as_str() {
                return Err(message.to_owned());
            }
            let choice = &event["choices"][0];
            let n_tokens = choice["token_ids"].as_array().map_or(0, Vec::len);
            measured.tokens.resize(measured.tokens.len() + n_tokens, now);
            if is_piece(choice) {
                measured.first.get_or_insert(now);
                if let Some(&before) = measured.pieces.last() {
                    on_gap(now.saturating_sub(before));
                }
                measured.pieces.push(now);
            }
            if event["timings"].is_object() {
                measured.server_timings = Some(event["timings"].clone());
            }
            if let Some(n_tokens) = event["usage"]["completion_tokens"].as_u64() {
                measured.completion_tokens = n_tokens;
                measured.prompt_tokens = event["usage"]["prompt_tokens"].as_u64().unwrap_or_default();
            }
        }
    }
    Err("the stream was cut".to_owned())
}

/// Whether an event has something of an answer: text, or of a chat also reasoning or a piece of a call.
fn is_piece(choice: &Value) -> bool {
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let delta = &choice["delta"];
    is_text(&choice["text"])
        || is_text(&delta["content"])
        || is_text(&delta["reasoning_content"])
        || delta["tool_calls"].is_array()
}

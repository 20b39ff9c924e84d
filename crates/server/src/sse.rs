//! Streams: one loop that turns a generation into events for every endpoint, sent as server-sent events or as lines of JSON.
//!
//! An endpoint says what each event looks like ([`EventFormat`]); the loop owns waiting, metering, keep-alive and the
//! end. Dropping the response, as a disconnect does, drops the generation and so cancels it.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;
use tokenmill_sched::Canceller;
use tokio::time::{Instant, sleep_until, timeout};

use tokenmill::{TextEvent, TextStream};

use crate::{ApiError, App, app::Call, reply::Meter, request_id::RequestId};

/// A comment is sent this often while there is nothing to say, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How an endpoint writes its stream.
pub(crate) trait EventFormat: Send + 'static {
    /// Before the first token.
    fn begin(&mut self, out: &mut Events);
    /// For each piece of news of a sample that goes well.
    fn take(&mut self, event: &TextEvent, out: &mut Events);
    /// After the last sample ended.
    fn end(&mut self, out: &mut Events);
    /// When a sample failed; nothing comes after it.
    fn fail(&mut self, error: &ApiError, request_id: &RequestId, out: &mut Events);
}

/// Events waiting to be sent.
#[derive(Debug, Default)]
pub(crate) struct Events(VecDeque<OneEvent>);

#[derive(Debug)]
struct OneEvent {
    name: Option<String>,
    data: String,
}

impl Events {
    /// Adds an event without a name, as OpenAI's older endpoints have them.
    pub(crate) fn data(&mut self, data: &Value) {
        self.push(None, data.to_string());
    }

    /// Adds a named event.
    pub(crate) fn named(&mut self, name: &str, data: &Value) {
        self.push(Some(name.to_owned()), data.to_string());
    }

    /// Adds the mark that ends a stream of OpenAI's older endpoints.
    pub(crate) fn done(&mut self) {
        self.push(None, "[DONE]".to_owned());
    }

    fn push(&mut self, name: Option<String>, data: String) {
        self.0.push_back(OneEvent { name, data });
    }
}

/// Streams a generation in a format, as server-sent events.
pub(crate) fn stream_response(
    app: &App,
    call: &Call,
    stream: TextStream,
    format: impl EventFormat,
) -> Response {
    let events = events(app, call, stream, format).map(|event| {
        let sent = Event::default().data(event.data);
        Ok::<_, Infallible>(match event.name {
            Some(name) => sent.event(name),
            None => sent,
        })
    });
    let response = Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response();
    unbuffered(response)
}

/// Streams a generation in a format, one line of JSON for each event. Such a stream has no comments, and Ollama's clients take an
/// empty line for broken JSON: a space before the next line is what all of them read over.
pub(crate) fn line_response(
    app: &App,
    call: &Call,
    stream: TextStream,
    format: impl EventFormat,
) -> Response {
    let lines = events(app, call, stream, format).map(|event| event.data + "\n");
    let lines = with_keep_alive(lines, KEEP_ALIVE).map(Ok::<_, Infallible>);
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    unbuffered((kind, Body::from_stream(lines)).into_response())
}

/// Puts a space between lines wherever nothing comes for `interval`.
fn with_keep_alive(
    lines: impl Stream<Item = String> + Send + 'static,
    interval: Duration,
) -> impl Stream<Item = String> + Send + 'static {
    futures_util::stream::unfold(Box::pin(lines), move |mut lines| async move {
        match timeout(interval, lines.next()).await {
            Ok(line) => Some((line?, lines)),
            Err(_) => Some((" ".to_owned(), lines)),
        }
    })
}

/// Proxies that buffer would hold tokens back.
fn unbuffered(mut response: Response) -> Response {
    let no = HeaderValue::from_static("no");
    response.headers_mut().insert("x-accel-buffering", no);
    response
}

/// The events of a generation in a format.
fn events(
    app: &App,
    call: &Call,
    stream: TextStream,
    format: impl EventFormat,
) -> impl Stream<Item = OneEvent> + Send + 'static {
    let meter = Meter::new(app, call, stream.n_samples());
    let pace = Arc::new(Pace::default());
    tokio::spawn(end_stalled(
        Arc::downgrade(&pace),
        app.config.write_timeout,
        stream.cancellers(),
        call.id.clone(),
    ));
    let mut writer = Writer {
        pace,
        stream,
        meter,
        format,
        request_id: call.id.clone(),
        waiting: Events::default(),
        has_ended: false,
    };
    writer.format.begin(&mut writer.waiting);
    futures_util::stream::unfold(writer, |mut writer| async move {
        let event = writer.next().await?;
        Some((event, writer))
    })
}

/// Whether a stream's client takes what it is sent.
#[derive(Debug, Default)]
struct Pace(Mutex<PaceState>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PaceState {
    /// The next event was asked for.
    #[default]
    Reading,
    /// An event was handed out at this time, and no other was asked for.
    Behind(Instant),
    /// It was behind for too long.
    Ended,
}

impl Pace {
    fn state(&self) -> PaceState {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state; one that has ended stays so.
    fn set(&self, state: PaceState) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *now != PaceState::Ended {
            *now = state;
        }
    }
}

/// Cancels what a stream generates once its client has taken nothing for `limit`. The connection's own limit is not
/// enough: over HTTP/2 a client can read the connection and not the stream.
async fn end_stalled(pace: Weak<Pace>, limit: Duration, cancellers: Vec<Canceller>, id: RequestId) {
    let mut look_at = Instant::now() + limit;
    loop {
        sleep_until(look_at).await;
        let Some(pace) = pace.upgrade() else { return };
        look_at = match pace.state() {
            PaceState::Behind(since) if since.elapsed() >= limit => {
                pace.set(PaceState::Ended);
                cancellers.iter().for_each(Canceller::cancel);
                tracing::info!(
                    request_id = id.as_str(),
                    limit_s = limit.as_secs_f64(),
                    "a stream was ended, because its client took nothing"
                );
                return;
            }
            PaceState::Behind(since) => since + limit,
            PaceState::Reading => Instant::now() + limit,
            PaceState::Ended => return,
        };
    }
}

struct Writer<F> {
    pace: Arc<Pace>,
    stream: TextStream,
    meter: Meter,
    format: F,
    request_id: RequestId,
    waiting: Events,
    has_ended: bool,
}

impl<F: EventFormat> Writer<F> {
    async fn next(&mut self) -> Option<OneEvent> {
        self.pace.set(PaceState::Reading);
        let event = self.next_event().await;
        self.pace.set(PaceState::Behind(Instant::now()));
        event
    }

    async fn next_event(&mut self) -> Option<OneEvent> {
        loop {
            if let Some(event) = self.waiting.0.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            let event = self.stream.next_event().await;
            if let Some(event) = &event {
                self.meter.observe(event);
            }
            match event {
                _ if self.pace.state() == PaceState::Ended => {
                    self.has_ended = true;
                    let error = ApiError::Stalled;
                    self.format.fail(&error, &self.request_id, &mut self.waiting);
                }
                None => {
                    self.has_ended = true;
                    self.format.end(&mut self.waiting);
                }
                Some(TextEvent::Failed { error, .. }) => {
                    self.has_ended = true;
                    self.format
                        .fail(&error.into(), &self.request_id, &mut self.waiting);
                }
                Some(event) => self.format.take(&event, &mut self.waiting),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silence_between_lines_has_spaces() {
        let late = futures_util::stream::unfold(0, |n_sent| async move {
            tokio::time::sleep(Duration::from_millis(if n_sent == 1 { 100 } else { 0 })).await;
            (n_sent < 3).then(|| (format!("{{\"n\":{n_sent}}}\n"), n_sent + 1))
        });
        let sent: String = with_keep_alive(late, Duration::from_millis(20)).collect().await;
        assert!(
            sent.starts_with("{\"n\":0}\n ") && sent.ends_with("{\"n\":2}\n"),
            "{sent:?}"
        );
        let numbers: Vec<u64> = (sent.lines())
            .map(|line| {
                serde_json::from_str::<Value>(line).expect("a line of JSON")["n"]
                    .as_u64()
                    .expect("a number")
            })
            .collect();
        assert_eq!(numbers, [0, 1, 2]);
    }
}

//! Streams: one loop that turns a generation into events for every endpoint, sent as server-sent events or as
//! lines of JSON.
//!
//! An endpoint defines the form of each event ([`EventFormat`]); the loop owns waiting, metering, keep-alive
//! and the end. Dropping the response, as a disconnect does, drops the generation and so cancels it.

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
        sse::{Event, Sse},
    },
};
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;
use tokenmill_sched::Canceller;
use tokio::time::{Instant, sleep_until, timeout};

use tokenmill::{TextStream, stream::TextEvent};

use crate::{ApiError, App, answers::reply::Meter, app::Call, telemetry::request_id::RequestId};

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
    let events = events(app, call, stream, format).map(|sent| {
        Ok::<_, Infallible>(match sent {
            Sent::Event(OneEvent {
                name: Some(name),
                data,
            }) => Event::default().event(name).data(data),
            Sent::Event(OneEvent { name: None, data }) => Event::default().data(data),
            Sent::Silence => Event::default().comment(""),
        })
    });
    unbuffered(Sse::new(events).into_response())
}

/// Streams a generation in a format, one line of JSON for each event. Such a stream has no comments, and Ollama's clients take an
/// empty line for broken JSON, but all of them skip a space before the next line.
pub(crate) fn line_response(
    app: &App,
    call: &Call,
    stream: TextStream,
    format: impl EventFormat,
) -> Response {
    let lines = events(app, call, stream, format).map(|sent| {
        Ok::<_, Infallible>(match sent {
            Sent::Event(event) => event.data + "\n",
            Sent::Silence => " ".to_owned(),
        })
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    unbuffered((kind, Body::from_stream(lines)).into_response())
}

/// Proxies that buffer would hold tokens back.
fn unbuffered(mut response: Response) -> Response {
    let no = HeaderValue::from_static("no");
    response.headers_mut().insert("x-accel-buffering", no);
    response
}

/// A message to a client.
enum Sent {
    Event(OneEvent),
    /// Nothing came for a while: a sign of life.
    Silence,
}

/// The events of a generation in a format.
fn events(
    app: &App,
    call: &Call,
    stream: TextStream,
    format: impl EventFormat,
) -> impl Stream<Item = Sent> + Send + 'static {
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
        keep_alive: app.config.keep_alive,
    };
    writer.format.begin(&mut writer.waiting);
    futures_util::stream::unfold(writer, |mut writer| async move {
        let event = writer.next().await?;
        Some((event, writer))
    })
}

/// Whether a stream's client reads.
#[derive(Debug, Default)]
struct Pace(Mutex<PaceState>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PaceState {
    /// The next event was requested.
    #[default]
    Reading,
    /// An event was handed out at this time, and no other was requested.
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

/// Cancels a stream's generation once its client has read nothing for `limit`. The connection's own limit is not
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
                    "a stream was ended because its client read nothing"
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
    /// Longest silence.
    keep_alive: Duration,
}

impl<F: EventFormat> Writer<F> {
    /// Returns the next message. Signs of life count as events do: a client that takes none is behind.
    async fn next(&mut self) -> Option<Sent> {
        self.pace.set(PaceState::Reading);
        let sent = match timeout(self.keep_alive, self.next_event()).await {
            Ok(event) => event.map(Sent::Event),
            Err(_) => Some(Sent::Silence),
        };
        self.pace.set(PaceState::Behind(Instant::now()));
        sent
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

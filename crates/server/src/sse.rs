//! Server-sent events: one loop that turns a generation into a stream of events for every endpoint.
//!
//! An endpoint says what each event looks like ([`EventFormat`]); the loop owns waiting, metering, keep-alive and the
//! end. Dropping the response, as a disconnect does, drops the generation and so cancels it.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::{
    http::HeaderValue,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use serde_json::Value;

use crate::{
    ApiError, App,
    app::Call,
    reply::Meter,
    request_id::RequestId,
    text_stream::{TextEvent, TextStream},
};

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
pub(crate) struct Events(VecDeque<Event>);

impl Events {
    /// Adds an event without a name, as OpenAI's older endpoints have them.
    pub(crate) fn data(&mut self, data: &Value) {
        self.0.push_back(Event::default().data(data.to_string()));
    }

    /// Adds a named event.
    pub(crate) fn named(&mut self, name: &str, data: &Value) {
        self.0
            .push_back(Event::default().event(name).data(data.to_string()));
    }

    /// Adds the mark that ends a stream of OpenAI's older endpoints.
    pub(crate) fn done(&mut self) {
        self.0.push_back(Event::default().data("[DONE]"));
    }
}

/// Streams a generation in a format.
pub(crate) fn stream_response(
    app: &App,
    call: &Call,
    stream: TextStream,
    format: impl EventFormat,
) -> Response {
    let meter = Meter::new(app, call, stream.n_samples());
    let mut writer = Writer {
        stream,
        meter,
        format,
        request_id: call.id.clone(),
        waiting: Events::default(),
        has_ended: false,
    };
    writer.format.begin(&mut writer.waiting);
    let events = futures_util::stream::unfold(writer, |mut writer| async move {
        let event = writer.next().await?;
        Some((Ok::<_, Infallible>(event), writer))
    });
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response();
    // Proxies that buffer would hold tokens back.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Writer<F> {
    stream: TextStream,
    meter: Meter,
    format: F,
    request_id: RequestId,
    waiting: Events,
    has_ended: bool,
}

impl<F: EventFormat> Writer<F> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.0.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            let event = self.stream.next().await;
            if let Some(event) = &event {
                self.meter.observe(event);
            }
            match event {
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

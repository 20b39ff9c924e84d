//! One log event for each request, when its last byte is out or its client is gone.
//!
//! The cost of a request is known only at its end, long after the endpoint returned: the endpoint fills a
//! [`Tally`], and the event is written when the response body ends. Invariant: every request is logged
//! exactly once, also when its client leaves before it is answered; its text and its key never are.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::{Body as HttpBody, Bytes, HttpBody as _},
    extract::Request,
    http::{Method, StatusCode},
    middleware::Next,
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use tokenmill::stream::TextEnd;
use tokenmill_sched::MissReason;

use crate::{
    errors::api_error::shortened,
    telemetry::{
        outcome::TokenCounts,
        request_id::{RequestId, traceparent},
    },
};

/// Target of the event that each request leaves.
pub(crate) const TARGET: &str = "tokenmill::request";

/// Running costs of a request; clones are handles to the same figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<Mutex<Figures>>);

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    tokens: TokenCounts,
    cache_miss: Option<MissReason>,
}

impl Tally {
    /// Adds a sample that ended.
    pub(crate) fn add(&self, end: &TextEnd) {
        let mut figures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        figures.tokens.add(end);
        if end.finished.sample == 0 {
            figures.cache_miss = end.finished.usage.cache_miss;
        }
    }

    /// Adds the prompt tokens of a forward pass.
    pub(crate) fn add_prompt(&self, n_tokens: usize) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .tokens
            .prompt += n_tokens;
    }

    fn figures(&self) -> Figures {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The code of the error that a response carries, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorCode(pub(crate) &'static str);

/// Logs every request. `is_quiet` returns whether a path is logged only at the level of debugging.
pub(crate) async fn log_request(is_quiet: fn(&str) -> bool, mut request: Request, next: Next) -> Response {
    let tally = Tally::default();
    let mut line = Line {
        method: request.method().clone(),
        path: shortened(request.uri().path()).into_owned(),
        id: request
            .extensions()
            .get::<RequestId>()
            .cloned()
            .unwrap_or_default(),
        traceparent: traceparent(request.headers()).map(str::to_owned),
        began: Instant::now(),
        status: None,
        error: None,
        is_whole: false,
        is_quiet: is_quiet(request.uri().path()),
        tally: tally.clone(),
    };
    request.extensions_mut().insert(tally);
    let response = next.run(request).await;
    line.status = Some(response.status());
    line.error = response.extensions().get::<ErrorCode>().map(|code| code.0);
    response.map(|body| HttpBody::new(LoggedBody { body, line }))
}

/// The log line of a request; written when it is dropped.
#[derive(Debug)]
struct Line {
    method: Method,
    path: String,
    id: RequestId,
    traceparent: Option<String>,
    began: Instant,
    status: Option<StatusCode>,
    error: Option<&'static str>,
    is_whole: bool,
    is_quiet: bool,
    tally: Tally,
}

/// A time in milliseconds, to a hundredth.
fn rounded_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 1e2
}

impl Drop for Line {
    fn drop(&mut self) {
        let Figures { tokens, cache_miss } = self.tally.figures();
        let has_tokens = tokens.prompt > 0;
        macro_rules! write_at {
            ($level:ident) => {
                tracing::$level!(
                    target: TARGET,
                    method = %self.method,
                    path = self.path,
                    status = self.status.map(|status| status.as_u16()),
                    duration_ms = rounded_ms(self.began.elapsed()),
                    request_id = self.id.as_str(),
                    traceparent = self.traceparent,
                    prompt_tokens = has_tokens.then_some(tokens.prompt),
                    cached_tokens = has_tokens.then_some(tokens.cached),
                    completion_tokens = has_tokens.then_some(tokens.completion),
                    cache_miss = cache_miss.map(MissReason::name),
                    error = self.error,
                    disconnected = (!self.is_whole).then_some(true),
                    "request"
                )
            };
        }
        if self.is_quiet {
            write_at!(debug);
        } else {
            write_at!(info);
        }
    }
}

/// A response body that knows the log line of its request.
struct LoggedBody {
    body: HttpBody,
    line: Line,
}

impl axum::body::HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.line.is_whole = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for LoggedBody {
    fn drop(&mut self) {
        // A body of known length may never be asked for the end that it has reached.
        self.line.is_whole |= self.body.is_end_stream();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded() {
        assert_eq!(rounded_ms(Duration::from_nanos(1_234_567)), 1.23);
        assert_eq!(rounded_ms(Duration::from_secs(2)), 2000.0);
    }
}

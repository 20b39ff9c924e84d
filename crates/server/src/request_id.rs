//! [`RequestId`]: names a request in responses, logs and traces.

use std::{
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use axum::{extract::Request, http::HeaderName, http::HeaderValue, middleware::Next, response::Response};

/// Carries the id in both directions.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// W3C trace context; passed through so that a proxy's trace continues.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Longest id taken from a client.
const MAX_LEN: usize = 128;

/// The id of a request: the client's own where it sent a usable one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestId(String);

impl RequestId {
    /// The id as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Takes the id that a client sent, if it is short and plain, so that it can stand in a log line.
    fn from_client(value: &HeaderValue) -> Option<Self> {
        let text = value.to_str().ok()?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let is_usable = (1..=MAX_LEN).contains(&text.len()) && text.bytes().all(is_plain);
        is_usable.then(|| Self(text.to_owned()))
    }

    /// Makes an id that hardly any other request anywhere has.
    fn fresh() -> Self {
        Self(unique_id("req_"))
    }
}

/// `prefix` and 32 hexadecimal digits that differ for every call of a process, and between processes.
pub(crate) fn unique_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut id = String::from(prefix);
    for salt in 0..2_u64 {
        // The standard library seeds each `RandomState` from the system's randomness.
        let _ = write!(id, "{:016x}", RandomState::new().hash_one((count, salt)));
    }
    id
}

/// Gives every request an id, and every response its request's id and trace context.
pub(crate) async fn name_request(mut request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(REQUEST_ID)
        .and_then(RequestId::from_client)
        .unwrap_or_else(RequestId::fresh);
    let trace = request.headers().get(TRACEPARENT).cloned();
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    let value = HeaderValue::from_str(id.as_str()).expect("an id is plain ASCII");
    response.headers_mut().insert(REQUEST_ID, value);
    if let Some(trace) = trace {
        response.headers_mut().insert(TRACEPARENT, trace);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_names_its_request_only_plainly() {
        let named = |text: &'static str| RequestId::from_client(&HeaderValue::from_static(text));
        assert_eq!(named("abc-1.2_3:4"), Some(RequestId("abc-1.2_3:4".to_owned())));
        assert_eq!(named("a b"), None);
        assert_eq!(named(""), None);
    }

    #[test]
    fn fresh_ids_differ() {
        assert_ne!(RequestId::fresh(), RequestId::fresh());
    }
}

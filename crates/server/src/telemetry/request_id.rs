//! [`RequestId`]: names a request in responses, logs and traces.

use std::{
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};

/// Carries the id in both directions.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// W3C trace context; passed through so that a proxy's trace continues.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Longest trace context that is passed on; the version in use has 55 characters.
const MAX_TRACEPARENT: usize = 128;

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

/// The trace that a request is part of, if it says so in the form of the W3C's recommendation.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(TRACEPARENT)?.to_str().ok()?;
    let is_hex = |text: &str, n_digits: usize| {
        text.len() == n_digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_id = |text: &str, n_digits| is_hex(text, n_digits) && text.bytes().any(|byte| byte != b'0');
    let mut parts = text.splitn(5, '-');
    let version = parts.next().filter(|part| is_hex(part, 2) && *part != "ff")?;
    parts.next().filter(|part| is_id(part, 32))?;
    parts.next().filter(|part| is_id(part, 16))?;
    parts.next().filter(|part| is_hex(part, 2))?;
    // Later versions may add parts.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let may_go_on = version != "00" && text.len() <= MAX_TRACEPARENT && text.bytes().all(is_plain);
    (parts.next().is_none() || may_go_on).then_some(text)
}

/// Gives every request an id, and every response its request's id and trace context.
pub(crate) async fn name_request(mut request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(REQUEST_ID)
        .and_then(RequestId::from_client)
        .unwrap_or_else(RequestId::fresh);
    let trace = traceparent(request.headers())
        .and_then(|_| request.headers().get(TRACEPARENT))
        .cloned();
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
    fn a_trace_context_has_its_form() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let is_taken = |text: &str| {
            let headers =
                HeaderMap::from_iter([(TRACEPARENT, HeaderValue::from_str(text).expect("a value"))]);
            traceparent(&headers).is_some()
        };
        assert!(is_taken(trace));
        assert!(is_taken(&trace.replacen("00", "01", 1)));
        assert!(is_taken(&(trace.replacen("00", "01", 1) + "-more")));
        for wrong in [
            String::new(),
            "<script>".to_owned(),
            trace.to_owned() + "-more",
            trace.to_uppercase(),
            trace.replacen("00", "ff", 1),
            trace.replace("b7ad6b7169203331", "0000000000000000"),
            trace[..54].to_owned(),
            trace.replacen("00", "01", 1) + "-" + &"a".repeat(200),
        ] {
            assert!(!is_taken(&wrong), "{wrong}");
        }
    }

    #[test]
    fn fresh_ids_differ() {
        assert_ne!(RequestId::fresh(), RequestId::fresh());
    }
}

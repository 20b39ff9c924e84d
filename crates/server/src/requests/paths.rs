//! The forms in which clients write the paths of the API, brought to one.
//!
//! Clients append their paths to a base address that people type with or without `/v1`, with a slash at the end or
//! twice. Invariant: a path that the router knows does not change.

use axum::{
    Extension,
    http::{Request, Uri, uri::PathAndQuery},
};

use crate::errors::api_error::shortened;

/// First parts of the paths below `/v1`.
const BEHIND_V1: [&str; 8] = [
    "chat",
    "completions",
    "embeddings",
    "models",
    "rerank",
    "reranking",
    "responses",
    "messages",
];

/// The path as the client wrote it, where that is another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedPath(pub(crate) String);

impl AskedPath {
    /// Says whether the client left out the `/v1` prefix of the path.
    pub(crate) fn is_unversioned(&self) -> bool {
        let first = self.0.split('/').find(|piece| !piece.is_empty());
        first.is_some_and(|first| BEHIND_V1.contains(&first))
    }

    /// The path that an error names: the client's own.
    pub(crate) fn or(asked: Option<Extension<Self>>, uri: &Uri) -> String {
        let path = asked.map_or_else(|| uri.path().to_owned(), |Extension(Self(path))| path);
        shortened(&path).into_owned()
    }
}

/// Says whether supervisors and load balancers probe this path.
pub(crate) fn is_probe(path: &str) -> bool {
    ["/livez", "/readyz", "/health", "/v1/health"].contains(&path)
}

/// Decodes the percent escapes of a URL; invalid escapes do not change.
pub(crate) fn unescaped(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    out
}

/// Rewrites a request's path to the form that the router knows.
pub(crate) fn normalize<B>(mut request: Request<B>) -> Request<B> {
    if let Some(path) = normalized(request.uri().path()) {
        let asked = AskedPath(request.uri().path().to_owned());
        request.extensions_mut().insert(asked);
        let query = request
            .uri()
            .query()
            .map_or(String::new(), |query| format!("?{query}"));
        let mut parts = request.uri().clone().into_parts();
        if let Ok(whole) = PathAndQuery::try_from(path + &query) {
            parts.path_and_query = Some(whole);
            if let Ok(uri) = Uri::from_parts(parts) {
                *request.uri_mut() = uri;
            }
        }
    }
    request
}

/// The path in the form that the router knows; `None` where it has that form.
fn normalized(path: &str) -> Option<String> {
    let mut pieces: Vec<&str> = path.split('/').filter(|piece| !piece.is_empty()).collect();
    while pieces.starts_with(&["v1", "v1"]) {
        pieces.remove(0);
    }
    if pieces.first().is_some_and(|first| BEHIND_V1.contains(first)) {
        pieces.insert(0, "v1");
    }
    let normal = format!("/{}", pieces.join("/"));
    (normal != path).then_some(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_two_digits() {
        for (text, expected) in [
            ("a%2Fb%20c", &b"a/b c"[..]),
            ("100%", b"100%"),
            ("%+1%4", b"%+1%4"),
            ("%ff\u{e4}", b"\xff\xc3\xa4"),
        ] {
            assert_eq!(unescaped(text), expected, "{text}");
        }
    }

    #[test]
    fn a_base_address_may_end_in_any_form() {
        for (path, expected) in [
            ("/v1/chat/completions", None),
            ("/v1/models/org/name", None),
            ("/", None),
            ("/metrics", None),
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/rerank", Some("/v1/rerank")),
            ("/v2/rerank", None),
            ("/reranking", Some("/v1/reranking")),
            ("/health", None),
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("//v1/completions", Some("/v1/completions")),
            ("/v1//models/", Some("/v1/models")),
            ("/v1/messages/count_tokens/", Some("/v1/messages/count_tokens")),
            ("//etc/passwd", Some("/etc/passwd")),
        ] {
            assert_eq!(normalized(path).as_deref(), expected, "{path}");
        }
        let request = Request::get("//models/?a=b").body(()).expect("a request");
        let request = normalize(request);
        assert_eq!(request.uri(), "/v1/models?a=b");
        let asked = request.extensions().get::<AskedPath>();
        assert_eq!(asked, Some(&AskedPath("//models/".to_owned())));
    }
}

//! The forms in which clients write the paths of the API, brought to one.
//!
//! Clients append their paths to a base address that people type with or without `/v1`, with a slash at the end or
//! twice. Invariant: a path that the router knows does not change.

use std::{collections::BTreeSet, sync::LazyLock};

use axum::http::{Request, Uri, uri::PathAndQuery};

use super::{ENDPOINTS, endpoint::Endpoint};
use crate::requests::paths::AskedPath;

/// First pieces of the paths below `/v1` that no path without `/v1` begins with.
static BELOW_V1: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let paths = || ENDPOINTS.iter().flat_map(Endpoint::paths);
    let first_piece = |path: &'static str| path.split('/').nth(1).unwrap_or_default();
    let others: BTreeSet<&str> = paths().map(first_piece).collect();
    paths()
        .filter_map(|path| path.strip_prefix("/v1"))
        .map(first_piece)
        .filter(|first| !others.contains(first))
        .collect()
});

/// Rewrites a request's path to the form that the router knows.
pub(crate) fn normalize<B>(mut request: Request<B>) -> Request<B> {
    if let Some(Normal { path, is_unversioned }) = normalized(request.uri().path()) {
        let asked = AskedPath {
            path: request.uri().path().to_owned(),
            is_unversioned,
        };
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

/// A path in the form that the router knows.
#[derive(Debug, PartialEq, Eq)]
struct Normal {
    path: String,
    /// Whether the client left out the `/v1` prefix.
    is_unversioned: bool,
}

/// Brings a path to the form that the router knows; `None` where it has that form.
fn normalized(path: &str) -> Option<Normal> {
    let mut pieces: Vec<&str> = path.split('/').filter(|piece| !piece.is_empty()).collect();
    while pieces.starts_with(&["v1", "v1"]) {
        pieces.remove(0);
    }
    let is_unversioned = pieces.first().is_some_and(|first| BELOW_V1.contains(first));
    if is_unversioned {
        pieces.insert(0, "v1");
    }
    let normal = format!("/{}", pieces.join("/"));
    (normal != path).then_some(Normal {
        path: normal,
        is_unversioned,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("/loads", None),
            ("/score", Some("/v1/score")),
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("//v1/completions", Some("/v1/completions")),
            ("/v1//models/", Some("/v1/models")),
            ("/v1/messages/count_tokens/", Some("/v1/messages/count_tokens")),
            ("//etc/passwd", Some("/etc/passwd")),
        ] {
            let found = normalized(path).map(|normal| normal.path);
            assert_eq!(found.as_deref(), expected, "{path}");
        }
        let request = Request::get("//models/?a=b").body(()).expect("a request");
        let request = normalize(request);
        assert_eq!(request.uri(), "/v1/models?a=b");
        let asked = request.extensions().get::<AskedPath>();
        let expected = AskedPath {
            path: "//models/".to_owned(),
            is_unversioned: true,
        };
        assert_eq!(asked, Some(&expected));
    }
}

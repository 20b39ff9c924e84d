//! [`ApiKeys`]: who may call the API.
//!
//! Invariant: comparing a key takes the same time wherever it first differs, and all keys are compared.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::Response,
};
use subtle::{Choice, ConstantTimeEq};

use crate::{ApiError, App, Dialect, app::error_response, request_id::RequestId};

/// The keys that clients may use.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Takes a list of keys; empty ones are left out.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        let trimmed = keys.into_iter().map(|key| key.trim().to_owned());
        Self(trimmed.filter(|key| !key.is_empty()).collect())
    }

    /// Reads one key a line; empty lines and those that begin with `#` are left out.
    pub fn from_lines(text: &str) -> Self {
        Self::new(
            text.lines()
                .filter(|line| !line.trim_start().starts_with('#'))
                .map(str::to_owned),
        )
    }

    /// Adds the keys of another list.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Whether anybody may call.
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    fn admit(&self, offered: &str) -> bool {
        let is_one = |key: &String| key.as_bytes().ct_eq(offered.as_bytes());
        self.0
            .iter()
            .map(is_one)
            .fold(Choice::from(0), |any, one| any | one)
            .into()
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ApiKeys({} hidden)", self.0.len())
    }
}

/// Refuses requests without a valid key.
pub(crate) async fn require_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let keys = &app.config.api_keys;
    if keys.is_open() || offered_key(request.headers()).is_some_and(|key| keys.admit(key)) {
        return next.run(request).await;
    }
    let dialect = match request.uri().path() {
        path if path.starts_with("/v1/messages") => Dialect::Anthropic,
        _ => Dialect::OpenAi,
    };
    let request_id = request
        .extensions()
        .get::<RequestId>()
        .cloned()
        .unwrap_or_default();
    app.metrics.count_refusal(&ApiError::Unauthorized);
    error_response(&ApiError::Unauthorized, dialect, &request_id)
}

/// The key of a request, from OpenAI's or Anthropic's header.
fn offered_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
    bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_lines_and_only_they_are_admitted() {
        let keys = ApiKeys::from_lines("# the team\nalpha\n\n beta \n");
        assert!(keys.admit("alpha") && keys.admit("beta"));
        assert!(!keys.admit("gamma") && !keys.admit("alph") && !keys.admit("") && !keys.admit("# the team"));
        assert!(ApiKeys::from_lines("\n# nothing\n").is_open());
        assert_eq!(format!("{keys:?}"), "ApiKeys(2 hidden)");
    }

    #[test]
    fn a_key_comes_in_either_header() {
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a header value"));
            offered_key(&headers).map(str::to_owned)
        };
        assert_eq!(with("authorization", "Bearer k"), Some("k".to_owned()));
        assert_eq!(with("authorization", "Basic k"), None);
        assert_eq!(with("x-api-key", "k"), Some("k".to_owned()));
    }
}

//! The check of API keys: a request without a valid one is refused, and one with a key is its tenant's.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::Response,
};

use crate::{
    ApiError, Dialect, app::error_response, config::keys::Tenant, models::Models,
    telemetry::request_id::RequestId,
};

/// Refuses requests without a valid key.
pub(crate) async fn require_key(State(models): State<Models>, mut request: Request, next: Next) -> Response {
    let keys = &models.config().api_keys;
    if keys.is_open() {
        return next.run(request).await;
    }
    if let Some(key) = offered_key(request.headers()).filter(|key| keys.admit(key)) {
        let tenant = Tenant::of_key(key);
        request.extensions_mut().insert(tenant);
        return next.run(request).await;
    }
    let dialect = Dialect::of_path(request.uri().path());
    let request_id = request
        .extensions()
        .get::<RequestId>()
        .cloned()
        .unwrap_or_default();
    models.count_refusal(&ApiError::Unauthorized);
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

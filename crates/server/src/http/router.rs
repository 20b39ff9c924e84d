//! [`router`]: which path leads to which endpoint.

use std::{any::Any, mem};

use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, Method},
    middleware::{Next, from_fn, from_fn_with_state},
    response::Response,
};
use tower::ServiceExt as _;
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, AllowOrigin, CorsLayer},
};

use crate::{
    ApiError, Dialect,
    app::error_response,
    endpoints::{ENDPOINTS, endpoint::is_quiet, models, path_forms::normalize},
    http::{
        auth::require_key,
        origin::{check_origin, is_named},
    },
    models::Models,
    telemetry::{
        request_id::{RequestId, name_request},
        request_log::log_request,
    },
};

/// Builds the router of a server: of the [`App`](crate::App) of one model, or of several [`Models`].
pub fn router(models: impl Into<Models>) -> Router {
    let models = models.into();
    let (mut guarded, mut open) = (Router::new(), Router::new());
    for row in ENDPOINTS {
        for path in row.paths() {
            let part = if row.needs_key { &mut guarded } else { &mut open };
            *part = mem::take(part).route(path, row.route(&models));
        }
    }
    let guarded = guarded.route_layer(from_fn_with_state(models.clone(), require_key));
    let router = guarded
        .merge(open)
        .fallback(models::not_found)
        .method_not_allowed_fallback(models::wrong_method)
        .layer(cors(&models.config().cors_origins))
        .layer(from_fn_with_state(models.clone(), check_origin))
        .layer(CatchPanicLayer::custom(answer_panic))
        .layer(from_fn(|request: Request, next: Next| {
            log_request(is_quiet, request, next)
        }))
        .layer(from_fn(name_request))
        .with_state(models);
    // Layers of a router see a request after its path was looked up.
    Router::new().fallback_service(router.map_request(normalize))
}

/// Nothing is shared across origins unless the operator names them.
fn cors(origins: &[String]) -> CorsLayer {
    if origins.is_empty() {
        return CorsLayer::new();
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        let origins = origins.to_vec();
        AllowOrigin::predicate(move |origin: &HeaderValue, _| {
            origin.to_str().is_ok_and(|origin| is_named(&origins, origin))
        })
    };
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // The official packages add headers of their own (`x-stainless-…`), more with each version.
        .allow_headers(AllowHeaders::mirror_request())
}

/// A broken invariant ends its own request only, and its message stays in the log.
#[expect(clippy::needless_pass_by_value, reason = "the layer hands the payload over")]
fn answer_panic(payload: Box<dyn Any + Send>) -> Response {
    let message = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied());
    tracing::error!(message, "a request handler panicked");
    let error = ApiError::Internal {
        reason: "a broken invariant, which the server's log describes".to_owned(),
    };
    error_response(&error, Dialect::OpenAi, &RequestId::default())
}

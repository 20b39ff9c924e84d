//! [`router`]: which path leads to which endpoint.

use std::any::Any;

use axum::{
    Router,
    http::{HeaderValue, Method},
    middleware::{from_fn, from_fn_with_state},
    response::Response,
    routing::{MethodFilter, any, get, post},
};
use tower::ServiceExt as _;
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, AllowOrigin, CorsLayer},
};

use crate::{
    ApiError, Dialect,
    app::error_response,
    endpoints::{
        adapters, chat, completions, embeddings,
        frame::{endpoint, framed, framed_as},
        gateway, health, llama_cpp, manage, messages, metrics, models, ollama, openapi, page, rerank,
        responses, slots, words,
    },
    http::{
        auth::require_key,
        origin::{check_origin, is_named},
    },
    models::Models,
    requests::paths::normalize,
    telemetry::{
        request_id::{RequestId, name_request},
        request_log::log_request,
    },
};

/// Builds the router of a server: of the [`App`](crate::App) of one model, or of several [`Models`].
pub fn router(models: impl Into<Models>) -> Router {
    let models = models.into();
    let openai = Dialect::OpenAi;
    let guarded = Router::new()
        .route("/v1/chat/completions", endpoint(openai, chat::chat))
        .route("/v1/chat/completions/render", endpoint(openai, chat::render))
        .route(
            "/v1/chat/completions/input_tokens",
            endpoint(openai, chat::count_tokens),
        )
        .route("/v1/completions/render", endpoint(openai, completions::render))
        .route("/v1/completions", endpoint(openai, completions::completions))
        .route("/v1/embeddings", endpoint(openai, embeddings::embeddings))
        .route("/v1/rerank", endpoint(openai, rerank::rerank))
        .route("/v2/rerank", endpoint(openai, rerank::rerank))
        .route("/v1/reranking", endpoint(openai, rerank::rerank))
        .route("/v1/responses", endpoint(openai, responses::responses))
        .route(
            "/v1/responses/input_tokens",
            endpoint(openai, responses::count_tokens),
        )
        .route(
            "/v1/responses/{id}",
            get(responses::stored).delete(responses::forget),
        )
        .route("/v1/messages", endpoint(Dialect::Anthropic, messages::messages))
        .route(
            "/v1/messages/count_tokens",
            endpoint(Dialect::Anthropic, messages::count_tokens),
        )
        .route("/completion", endpoint(openai, llama_cpp::completion))
        .route("/infill", endpoint(openai, llama_cpp::infill))
        .route("/embedding", endpoint(openai, embeddings::llama_cpp))
        .route("/props", get(llama_cpp::props))
        .route("/slots", get(slots::list))
        .route("/slots/{id}", endpoint(openai, slots::act))
        .route("/tokenize", endpoint(openai, words::tokenize))
        .route("/detokenize", endpoint(openai, words::detokenize))
        .route("/apply-template", endpoint(openai, words::apply_template))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/v1/load_lora_adapter", endpoint(openai, adapters::load))
        .route("/v1/unload_lora_adapter", endpoint(openai, adapters::unload))
        .route(
            "/lora-adapters",
            endpoint(openai, adapters::scale).get(adapters::list),
        )
        .route("/metrics", get(metrics::metrics))
        .route("/v1/loads", get(gateway::loads))
        .route("/loads", get(gateway::loads))
        .route("/version", get(gateway::version))
        .route("/get_model_info", get(gateway::model))
        .route("/model_info", get(gateway::model))
        .route("/server_info", get(gateway::server))
        .route("/get_server_info", get(gateway::server))
        .route("/tokenizer_info", get(gateway::tokenizer))
        .route_layer(from_fn_with_state(models.clone(), require_key));
    let mut guarded = guarded.merge(ollama_paths(&models));
    if models.only().is_none() {
        let key = from_fn_with_state(models.clone(), require_key);
        guarded = guarded.merge(
            Router::new()
                .route("/v1/models/load", framed(openai, manage::load))
                .route("/v1/models/unload", framed(openai, manage::unload))
                .route_layer(key),
        );
    } else {
        let key = from_fn_with_state(models.clone(), require_key);
        guarded = guarded.merge(
            Router::new()
                .route("/v1/models/load", post(manage::of_one_model))
                .route("/v1/models/unload", post(manage::of_one_model))
                .route_layer(key),
        );
    }
    // Probes, the page and the description hold no secrets and answer without a key.
    let open = Router::new()
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/health", get(health::health))
        .route("/v1/health", get(health::health))
        .route("/openapi.json", get(openapi::openapi))
        .route("/", get(page::index))
        .route("/web/{name}", get(page::file));
    let router = guarded
        .merge(open)
        .fallback(models::not_found)
        .method_not_allowed_fallback(models::wrong_method)
        .layer(cors(&models.config().cors_origins))
        .layer(from_fn_with_state(models.clone(), check_origin))
        .layer(CatchPanicLayer::custom(answer_panic))
        .layer(from_fn(log_request))
        .layer(from_fn(name_request))
        .with_state(models);
    // Layers of a router see a request after its path was looked up.
    Router::new().fallback_service(router.map_request(normalize))
}

/// Makes the routes of Ollama's API. Requests that would add or remove models are refused in its words.
fn ollama_paths(models: &Models) -> Router<Models> {
    let dialect = Dialect::Ollama;
    let mut paths = Router::new()
        .route("/api/chat", endpoint(dialect, ollama::chat))
        .route("/api/generate", endpoint(dialect, ollama::generate))
        .route("/api/embed", endpoint(dialect, ollama::embed::embed))
        .route("/api/embeddings", endpoint(dialect, ollama::embed::embeddings))
        .route("/api/show", framed(dialect, ollama::models::show))
        .route("/api/pull", framed(dialect, ollama::manage::pull))
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/ps", get(ollama::models::ps))
        .route("/api/version", get(ollama::models::version));
    for path in ["/api/push", "/api/create", "/api/copy", "/api/blobs/{digest}"] {
        paths = paths.route(path, any(ollama::manage::unmanaged));
    }
    let delete = if models.folder_manager().is_some() {
        framed_as(MethodFilter::DELETE, dialect, ollama::manage::delete)
    } else {
        any(ollama::manage::unmanaged)
    };
    paths = paths.route("/api/delete", delete);
    paths.route_layer(from_fn_with_state(models.clone(), require_key))
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

//! `GET /v1/models` and `GET /v1/models/{name}`.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
    http::{Method, Uri},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::{ApiError, App, Dialect, app::error_response, error::shortened, request_id::RequestId};

fn entry(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.model.created_s(),
        "owned_by": "tokenmill",
        "max_model_len": app.model.engine().limits().n_ctx,
    })
}

/// Lists the names that the model answers to.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let data: Vec<Value> = app.model.names().iter().map(|name| entry(&app, name)).collect();
    // Some clients look for a second list with names of its own.
    let models: Vec<Value> = (app.model.names().iter())
        .map(|name| {
            let n_ctx = app.model.engine().limits().n_ctx;
            json!({ "slug": name, "display_name": name, "name": name, "model": name, "context_window": n_ctx })
        })
        .collect();
    Json(json!({ "object": "list", "data": data, "models": models })).into_response()
}

/// Describes one of them.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
    request_id: Extension<RequestId>,
    method: Method,
    uri: Uri,
) -> Response {
    let Ok(Path(name)) = name else {
        return not_found(request_id, method, uri).await;
    };
    match app.model.check_name(Some(&name)) {
        Ok(()) => Json(entry(&app, &name)).into_response(),
        Err(error) => error_response(&error, Dialect::OpenAi, &request_id),
    }
}

/// What an unknown path is answered.
pub(crate) async fn not_found(request_id: Extension<RequestId>, method: Method, uri: Uri) -> Response {
    let error = ApiError::NotFound {
        method: method.to_string(),
        path: shortened(uri.path()).into_owned(),
    };
    error_response(&error, Dialect::of_path(uri.path()), &request_id)
}

/// What a wrong method is answered.
pub(crate) async fn wrong_method(request_id: Extension<RequestId>, method: Method, uri: Uri) -> Response {
    let error = ApiError::MethodNotAllowed {
        method: method.to_string(),
        path: shortened(uri.path()).into_owned(),
    };
    error_response(&error, Dialect::of_path(uri.path()), &request_id)
}

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

fn entry(app: &App, name: &str, parent: Option<&str>) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.model.created_s(),
        "owned_by": "tokenmill",
        "parent": parent,
        "max_model_len": app.model.engine().limits().n_ctx,
    })
}

/// All names, each with the model that it is an adapter of, if it is one.
fn names(app: &App) -> Vec<(String, Option<&str>)> {
    let adapters = app.model.model().adapters().into_iter();
    let adapters = adapters.map(|adapter| (adapter.name, Some(app.model.name())));
    (app.model.names().iter())
        .map(|name| (name.clone(), None))
        .chain(adapters)
        .collect()
}

/// Lists the names that the model and its adapters answer to.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let names = names(&app);
    let data: Vec<Value> = (names.iter())
        .map(|(name, parent)| entry(&app, name, *parent))
        .collect();
    // Some clients look for a second list with names of its own.
    let models: Vec<Value> = (names.iter())
        .map(|(name, _)| {
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
    match app.model.choose(Some(&name)) {
        Ok(chosen) => {
            let parent = chosen.adapter.as_ref().map(|_| app.model.name());
            Json(entry(&app, &name, parent)).into_response()
        }
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

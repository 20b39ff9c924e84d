//! llama.cpp's `POST /models/load` and `POST /models/unload`: models loaded and unloaded on purpose.
//!
//! Servers of one model refuse both. Invariant: neither waits; `GET /models` says how far it has come.

use axum::{
    Extension, Json,
    extract::State,
    http::Uri,
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{
    ApiError, Dialect,
    app::{Call, error_response},
    endpoints::models::status_of,
    models::{Doing, Models, Role},
    requests::{paths::AskedPath, request_table::request},
    telemetry::request_id::RequestId,
};

request! {
    /// A request of `/models/load` and `/models/unload`.
    pub(super) struct ManageRequest {
        required {
            /// Model name.
            model: String = "the name of the model",
        }
        optional {}
        others {}
    }
}

/// Orders a model loaded, and reports its state so far: a load that failed before says why. Other models make
/// room for it as they do for a request.
pub(crate) async fn load(models: Models, mut call: Call) -> Result<Response, ApiError> {
    let ManageRequest { model } = call.read(ManageRequest::TABLE.fields())?;
    let idx = models.find(Some(&model), Role::Chat).await?;
    models.order(idx);
    let status = status_of(&models.listed_one(idx));
    Ok(Json(json!({ "success": true, "status": status })).into_response())
}

/// Has a model unloaded once the requests on it have ended, also one that is pinned. The next request for it loads it again.
pub(crate) async fn unload(models: Models, mut call: Call) -> Result<Response, ApiError> {
    let ManageRequest { model } = call.read(ManageRequest::TABLE.fields())?;
    let idx = models.find(Some(&model), Role::Chat).await?;
    models.dismiss(idx);
    let listed = &models.listed_one(idx);
    let mut status = status_of(listed);
    // The model is unloaded once its requests end; lists have no word for that state.
    if matches!(listed.status.doing, Doing::Loaded | Doing::Unloading) {
        status["value"] = "unloading".into();
    }
    Ok(Json(json!({ "success": true, "status": status })).into_response())
}

/// Both paths on a server whose only model stays loaded.
pub(crate) async fn of_one_model(
    State(models): State<Models>,
    request_id: Extension<RequestId>,
    asked: Option<Extension<AskedPath>>,
    uri: Uri,
) -> Response {
    let error = ApiError::NotImplemented {
        path: AskedPath::or(asked, &uri),
        reason: "this server has one model, which stays loaded; started with `--idle-unload`, `--models` or `--models-dir` it loads and unloads",
    };
    models.count_refusal(&error);
    error_response(&error, Dialect::OpenAi, &request_id)
}

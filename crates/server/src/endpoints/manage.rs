//! llama.cpp's `POST /models/load` and `POST /models/unload`: models loaded and unloaded on purpose.
//!
//! Only servers of several models have them. Invariant: neither waits; `GET /models` says how far it has come.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;

use crate::{
    ApiError,
    app::Call,
    llama_cpp::MANAGE,
    models::{Models, Role, Spelling},
};

#[derive(Deserialize)]
struct Named {
    model: String,
}

/// Has a model loaded. What has to go for it goes as for a request.
pub(crate) async fn load(models: Models, mut call: Call) -> Result<Response, ApiError> {
    let Named { model } = call.read(MANAGE)?;
    models.order(models.find(Some(&model), Role::Chat, Spelling::Plain)?);
    Ok(Json(json!({ "success": true })).into_response())
}

/// Has a model unloaded once the requests on it have ended, also one that is pinned. The next request for it loads it again.
pub(crate) async fn unload(models: Models, mut call: Call) -> Result<Response, ApiError> {
    let Named { model } = call.read(MANAGE)?;
    models.dismiss(models.find(Some(&model), Role::Chat, Spelling::Plain)?);
    Ok(Json(json!({ "success": true })).into_response())
}

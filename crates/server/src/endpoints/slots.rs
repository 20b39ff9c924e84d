//! llama.cpp's slots: `GET /slots`, and `POST /slots/{id}?action=save|restore|erase`.
//!
//! Unlike the rest of llama.cpp's API, these store conversations in files. Invariant: files are read and
//! written apart from the threads of connections.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension, Json,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    ApiError, App, Dialect,
    app::{Call, error_response, slots::Asker},
    dialects::llama_cpp::SLOT_FILE,
    models::OneModel,
    requests::off_thread::off_thread,
    telemetry::request_id::RequestId,
};

/// Where a session is saved or restored.
#[derive(Debug, Deserialize)]
struct FileRequest {
    filename: String,
    cache_salt: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Save,
    Restore,
    Erase,
}

/// The slots, as `/slots`.
pub(crate) async fn list(one: OneModel, request_id: Extension<RequestId>) -> Response {
    let app = one.app();
    if !app.config.tells_slots {
        let error = ApiError::NotImplemented {
            path: "/slots".to_owned(),
            reason: "the server was started with `--no-slots`",
        };
        return error_response(&error, Dialect::OpenAi, &request_id);
    }
    let n_ctx = app.engine().limits().n_ctx;
    let slots: Vec<Value> = (app.slots.are_running().into_iter().enumerate())
        .map(|(id, is_running)| json!({ "id": id, "n_ctx": n_ctx, "is_processing": is_running }))
        .collect();
    Json(slots).into_response()
}

/// Saves, restores or erases a slot.
pub(crate) async fn act(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let Some(folder) = app.config.sessions.clone() else {
        return Err(ApiError::NotImplemented {
            path: "/slots/{id}".to_owned(),
            reason: "start the server with `--session-dir DIR`",
        });
    };
    let id = call.uri.path().rsplit('/').next().unwrap_or_default();
    let id: usize = (id.parse().ok())
        .filter(|&id| id < app.slots.are_running().len())
        .ok_or_else(|| ApiError::invalid("id_slot", "there is no such slot; `GET /slots` lists them"))?;
    let mut parameters = call.uri.query().unwrap_or_default().split('&');
    let action = match parameters.find_map(|parameter| parameter.strip_prefix("action=")) {
        Some("save") => Action::Save,
        Some("restore") => Action::Restore,
        Some("erase") => Action::Erase,
        _ => {
            return Err(ApiError::invalid(
                "action",
                "expected `save`, `restore` or `erase`",
            ));
        }
    };
    let tenant = call.tenant;
    if action == Action::Erase {
        let erase = move || app.slots.erase(id, tenant, app.model.model());
        let n_erased = off_thread(erase).await??;
        return Ok(Json(json!({ "id_slot": id, "n_erased": n_erased })).into_response());
    }
    let request: FileRequest = call.read(SLOT_FILE)?;
    let asker = Asker {
        tenant,
        cache_salt: tenant.cache_salt(request.cache_salt.as_deref()),
        has_adapter: false,
        has_images: false,
    };
    let began = Instant::now();
    let name = request.filename.clone();
    let size = off_thread(move || {
        let (slots, model) = (&app.slots, app.model.model());
        match action {
            Action::Restore => slots.restore(id, asker, model, &folder, &name),
            _ => slots.save(id, tenant, model, &folder, &name),
        }
    });
    let size = size.await??;
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    let (filename, n_tokens, n_bytes) = (request.filename, size.n_tokens, size.n_bytes);
    Ok(Json(match action {
        Action::Restore => json!({
            "id_slot": id, "filename": filename, "n_restored": n_tokens, "n_read": n_bytes,
            "timings": { "restore_ms": took_ms },
        }),
        _ => json!({
            "id_slot": id, "filename": filename, "n_saved": n_tokens, "n_written": n_bytes,
            "timings": { "save_ms": took_ms },
        }),
    })
    .into_response())
}

//! `GET /livez`, `GET /readyz` and `GET /health`, for supervisors, load balancers and clients.
//!
//! None waits for an engine, so all answer also when one hangs, and while the only model loads. A server of
//! several models is as alive as the engines of its loaded models, and ready with none loaded.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokenmill_sched::EngineState;

use crate::Models;

/// Why a server whose model loads takes no request.
const LOADING: &str = "loading";

/// 200 while the engines' heartbeats are young, 503 when one hangs or the only one has ended; the oldest age stands in the body.
pub(crate) async fn live(State(models): State<Models>) -> Response {
    let loaded = models.loaded();
    let ages = loaded.iter().map(|app| app.engine().heartbeat_age());
    let oldest = ages.max().unwrap_or(Duration::ZERO);
    let timeout = models.config().heartbeat_timeout;
    // One of several that has ended is unloaded soon.
    let has_ended = models
        .only()
        .is_some_and(|app| matches!(app.engine().state(), EngineState::Ended(_)));
    // A drained engine has ended as it should; the process is about to exit.
    let is_alive = (!has_ended && oldest <= timeout) || models.shutdown().has_begun();
    let mut body = vitality(is_alive);
    body["heartbeat_age_s"] = oldest.as_secs_f64().into();
    body["heartbeat_timeout_s"] = timeout.as_secs_f64().into();
    (status(is_alive), Json(body)).into_response()
}

/// The answer while the model loads: the process lives, and there is no engine yet.
pub(crate) fn live_while_loading() -> Response {
    Json(vitality(true)).into_response()
}

fn vitality(is_alive: bool) -> Value {
    json!({ "status": if is_alive { "alive" } else { "hung" } })
}

/// 200 when a request sent now would be taken: not draining, room in the queue.
pub(crate) async fn ready(State(models): State<Models>) -> Response {
    let (n_queued, reason) = readiness(&models);
    ready_answer(n_queued, reason)
}

/// The answer while the model loads.
pub(crate) fn ready_while_loading() -> Response {
    ready_answer(0, Some(LOADING))
}

fn ready_answer(n_queued: usize, reason: Option<&str>) -> Response {
    let body = json!({ "status": reason.unwrap_or("ready"), "queued": n_queued });
    (status(reason.is_none()), Json(body)).into_response()
}

/// The same in llama.cpp's format, whose clients wait for `ok`.
pub(crate) async fn health(State(models): State<Models>) -> Response {
    let (_, reason) = readiness(&models);
    (status(reason.is_none()), Json(health_body(reason))).into_response()
}

/// The answer while the model loads. Clients of llama.cpp wait while they read these words.
pub(crate) fn health_while_loading() -> Response {
    let mut body = health_body(Some(LOADING));
    body["error"] = json!({ "code": 503, "message": "Loading model", "type": "unavailable_error" });
    (status(false), Json(body)).into_response()
}

fn health_body(reason: Option<&str>) -> Value {
    json!({ "status": reason.unwrap_or("ok") })
}

/// How many requests are queued, and why a request sent now would not be taken.
fn readiness(models: &Models) -> (usize, Option<&'static str>) {
    let loaded = models.loaded();
    let n_queued = loaded.iter().map(|app| app.engine().queued().0).sum::<usize>() + models.n_waiting();
    let mut reasons = loaded.iter().map(|app| {
        let engine = app.engine();
        let (n_queued, n_queued_tokens) = engine.queued();
        let limits = engine.config();
        let is_full = n_queued >= limits.max_queued || n_queued_tokens >= limits.max_queued_tokens;
        match engine.state() {
            EngineState::Ended(_) => Some("engine ended"),
            EngineState::Running if is_full => Some("queue full"),
            EngineState::Running => {
                (engine.heartbeat_age() > models.config().heartbeat_timeout).then_some("engine hung")
            }
            EngineState::Draining => Some("draining"),
        }
    });
    let reason = if models.shutdown().has_begun() {
        Some("draining")
    } else if models.only().is_some() {
        reasons.next().flatten()
    } else if models.has_room_to_wait() {
        // A full or ended engine of one model keeps no request from another.
        reasons.flatten().find(|reason| *reason == "engine hung")
    } else {
        Some("queue full")
    };
    (n_queued, reason)
}

fn status(is_good: bool) -> StatusCode {
    if is_good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

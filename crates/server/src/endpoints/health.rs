//! `GET /livez`, `GET /readyz` and `GET /health`: what a supervisor, a load balancer and clients ask.
//!
//! None waits for the engine, so all answer also when it hangs.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;
use tokenmill_sched::EngineState;

use crate::App;

/// 200 while the engine's heartbeat is young, 503 when it hangs or has ended; the age stands in the body.
pub(crate) async fn live(State(app): State<Arc<App>>) -> Response {
    let engine = app.model.engine();
    let age = engine.heartbeat_age();
    let is_running = !matches!(engine.state(), EngineState::Ended(_));
    // A drained engine has ended as it should; the process is about to exit.
    let is_alive = (is_running && age <= app.config.heartbeat_timeout) || app.shutdown.has_begun();
    let body = json!({
        "status": if is_alive { "alive" } else { "hung" },
        "heartbeat_age_s": age.as_secs_f64(),
        "heartbeat_timeout_s": app.config.heartbeat_timeout.as_secs_f64(),
    });
    (status(is_alive), Json(body)).into_response()
}

/// 200 when a request sent now would be taken: loaded, not draining, room in the queue.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    let (n_queued, reason) = readiness(&app);
    let body = json!({ "status": reason.unwrap_or("ready"), "queued": n_queued });
    (status(reason.is_none()), Json(body)).into_response()
}

/// The same in the words of llama.cpp, whose clients wait for `ok`.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let (_, reason) = readiness(&app);
    let body = json!({ "status": reason.unwrap_or("ok") });
    (status(reason.is_none()), Json(body)).into_response()
}

/// How many requests are queued, and why a request sent now would not be taken.
fn readiness(app: &App) -> (usize, Option<&'static str>) {
    let engine = app.model.engine();
    let (n_queued, n_queued_tokens) = engine.queued();
    let config = engine.config();
    let reason = if app.shutdown.has_begun() || engine.state() != EngineState::Running {
        Some("draining")
    } else if n_queued >= config.max_queued || n_queued_tokens >= config.max_queued_tokens {
        Some("queue full")
    } else if engine.heartbeat_age() > app.config.heartbeat_timeout {
        Some("engine hung")
    } else {
        None
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

//! Endpoints for gateways and evaluation tools that ask about a replica: load, version, model, tokenizer.
//!
//! The paths and the names in the answers are those of vLLM and SGLang, which these tools were made for. The
//! answers contain only values that this server knows.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokenmill_backend::PAGE_TOKENS;

use crate::{App, models::OneModel};

/// How busy the engine is, as SGLang's `/v1/loads`.
pub(crate) async fn loads(one: OneModel) -> Response {
    let app = one.app();
    let engine = app.engine();
    let stats = engine.stats();
    let (n_queued, n_queued_tokens) = engine.queued();
    let n_waiting = n_queued.max(stats.n_waiting);
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let max_running = engine.config().max_running;
    let counters = stats.scheduler;
    let load = json!({
        "dp_rank": 0,
        "num_running_reqs": stats.n_running,
        "num_waiting_reqs": n_waiting,
        "num_waiting_uncached_tokens": n_queued_tokens,
        "num_total_reqs": stats.n_running + n_waiting,
        "num_used_tokens": stats.n_pages_in_use * PAGE_TOKENS,
        "max_total_num_tokens": engine.limits().kv_tokens(),
        "token_usage": stats.kv_usage(),
        "cache_hit_rate": share(counters.cached_tokens as f64, counters.prompt_tokens as f64),
        "gen_throughput": app.throughput.ask(stats.generated_tokens, Instant::now()),
        "utilization": share(stats.n_running as f64, max_running as f64),
        "max_running_requests": max_running,
    });
    let timestamp = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64());
    Json(json!({ "timestamp": timestamp, "dp_rank_count": 1, "loads": [load] })).into_response()
}

/// The program's version, as vLLM's `/version`.
pub(crate) async fn version() -> Response {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") })).into_response()
}

fn model_info(app: &App) -> Value {
    let n_ctx = app.engine().limits().n_ctx;
    json!({
        "model_path": app.model.name(),
        "tokenizer_path": app.model.name(),
        "served_model_name": app.model.name(),
        "is_generation": true,
        "has_chat_template": app.model.chat_template().is_some(),
        "vocab_size": app.model.tokenizer().n_vocab(),
        "max_model_len": n_ctx,
        "context_length": n_ctx,
    })
}

/// The model, as SGLang's `/get_model_info`.
pub(crate) async fn model(one: OneModel) -> Response {
    let app = one.app();
    Json(model_info(app)).into_response()
}

/// The model and how it is served, as SGLang's `/server_info`.
pub(crate) async fn server(one: OneModel) -> Response {
    let app = one.app();
    let engine = app.engine();
    let mut info = model_info(app);
    info["version"] = json!(env!("CARGO_PKG_VERSION"));
    info["max_running_requests"] = json!(engine.config().max_running);
    info["max_total_num_tokens"] = json!(engine.limits().kv_tokens());
    info["page_size"] = json!(PAGE_TOKENS);
    Json(info).into_response()
}

/// The tokenizer's special tokens and the chat template, as vLLM's `/tokenizer_info`.
pub(crate) async fn tokenizer(one: OneModel) -> Response {
    let app = one.app();
    let tokenizer = app.model.tokenizer();
    let text = |id: Option<u32>| {
        id.and_then(|id| tokenizer.token_bytes(id))
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    Json(json!({
        "tokenizer_class": "tokenmill",
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "pad_token": Value::Null,
        "chat_template": app.model.chat_template(),
        "vocab_size": tokenizer.n_vocab(),
        "model_max_length": app.engine().limits().n_ctx,
    }))
    .into_response()
}

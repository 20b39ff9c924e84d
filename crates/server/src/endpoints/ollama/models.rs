//! What Ollama's clients ask about models: the list, one of them, those in memory, the version. One model is served, and it
//! stays loaded; the paths that would change that say so.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::State,
    http::Uri,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use tokenmill::LoadedDevice;
use tokenmill_text::calls::ReplyFormat;

use super::timestamp;
use crate::{
    ApiError, App, Dialect,
    app::{Call, error_response},
    error::shortened,
    infill::has_marks,
    ollama::{
        choose,
        embed::{SHOW_FIELDS, ShowRequest},
    },
    request_id::RequestId,
};

/// The version of Ollama whose API this is. Clients compare it with the one that they need.
const OLLAMA_VERSION: &str = "0.12.6";

/// When a model is unloaded that never is.
const NEVER: &str = "9999-01-01T00:00:00Z";

/// The names of the model, as `/api/tags`.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Response {
    let models: Vec<Value> = app.model.names().iter().map(|name| entry(&app, name)).collect();
    Json(json!({ "models": models })).into_response()
}

/// The model in memory under its first name, as `/api/ps`.
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Response {
    let model = app.model.model();
    let own_bytes = model.memory().map_or(0, |plan| plan.total_bytes() as u64);
    let on_host = model.memory().and_then(|plan| plan.on_host.as_deref());
    let n_bytes = own_bytes + on_host.map_or(0, |plan| plan.total_bytes() as u64);
    let is_on_gpu = matches!(
        model.device(),
        LoadedDevice::Cuda { .. } | LoadedDevice::Split { .. }
    );
    let mut running = entry(&app, app.model.name());
    running["size"] = n_bytes.into();
    let device_bytes = model.memory().map_or(0, |plan| plan.device_bytes() as u64);
    running["size_vram"] = if is_on_gpu { device_bytes } else { 0 }.into();
    running["context_length"] = app.engine().limits().n_ctx.into();
    running["expires_at"] = NEVER.into();
    Json(json!({ "models": [running] })).into_response()
}

/// The version, as `/api/version`.
pub(crate) async fn version() -> Response {
    let server = concat!("tokenmill ", env!("CARGO_PKG_VERSION"));
    Json(json!({ "version": OLLAMA_VERSION, "server": server })).into_response()
}

/// Describes the model, as `/api/show`.
pub(crate) async fn show(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: ShowRequest = call.read(SHOW_FIELDS)?;
    choose(&app.model, request.name())?;
    let reply = json!({
        "modelfile": format!("FROM {}", app.model.name()),
        "parameters": "",
        "license": "",
        "template": app.model.chat_template().unwrap_or_default(),
        "details": details(&app),
        "model_info": model_info(&app),
        "capabilities": capabilities(&app),
        "modified_at": modified_at(&app),
    });
    Ok(Json(reply).into_response())
}

/// What the paths that manage models are answered.
pub(crate) async fn unmanaged(
    State(app): State<Arc<App>>,
    request_id: Extension<RequestId>,
    uri: Uri,
) -> Response {
    let error = ApiError::NotImplemented {
        path: shortened(uri.path()).into_owned(),
        reason: "this server serves the one model that it was started with; `tokenmill serve MODEL` serves another",
    };
    app.metrics.count_refusal(&error);
    error_response(&error, Dialect::Ollama, &request_id)
}

fn entry(app: &App, name: &str) -> Value {
    let n_bytes = app.model.model().facts().map_or(0, |facts| facts.weights_bytes);
    json!({
        "name": name,
        "model": name,
        "modified_at": modified_at(app),
        "size": n_bytes,
        "digest": digest(app),
        "details": details(app),
    })
}

fn modified_at(app: &App) -> String {
    timestamp(Duration::from_secs(app.model.created_s()))
}

fn details(app: &App) -> Value {
    let facts = app.model.model().facts();
    let arch = facts.map_or("", |facts| facts.arch.as_str());
    json!({
        "parent_model": "",
        "format": facts.map_or("", |facts| facts.format),
        "family": arch,
        "families": [arch],
        "parameter_size": facts.map_or_else(String::new, |facts| parameter_size(facts.n_params)),
        "quantization_level": facts.map_or("", |facts| facts.main_type),
    })
}

/// A count of parameters as people write it.
fn parameter_size(n_params: u64) -> String {
    match n_params as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n => format!("{:.0}K", n / 1e3),
    }
}

/// Tells loaded models apart. It is made of what is known of them, not of the bytes of their files.
fn digest(app: &App) -> String {
    let known = format!("{:?} {}", app.model.model().facts(), app.model.model().name());
    // FNV-1a, 64 bits.
    let hash = known.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn model_info(app: &App) -> Value {
    let limits = app.engine().limits();
    let mut info = Map::new();
    if let Some(facts) = app.model.model().facts() {
        let of_arch = |name: &str| format!("{}.{name}", facts.arch);
        info.insert("general.architecture".to_owned(), facts.arch.clone().into());
        info.insert("general.parameter_count".to_owned(), facts.n_params.into());
        // What the server has, which may be less than what the model was made for.
        info.insert(of_arch("context_length"), limits.n_ctx.into());
        info.insert(of_arch("embedding_length"), limits.n_embd.into());
        info.insert(of_arch("vocab_size"), limits.n_vocab.into());
    }
    Value::Object(info)
}

fn capabilities(app: &App) -> Vec<&'static str> {
    if app.engine().limits().is_encoder {
        return vec!["embedding"];
    }
    let mut capabilities = vec!["completion"];
    if let Some(template) = app.model.chat_template() {
        capabilities.push("tools");
        if ReplyFormat::of_template(template).has_reasoning() {
            capabilities.push("thinking");
        }
    }
    if has_marks(app.model.tokenizer()) {
        capabilities.push("insert");
    }
    capabilities
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_as_people_do() {
        for (n, text) in [(8_030_261_312, "8.0B"), (494_032_768, "494.03M"), (3_000, "3K")] {
            assert_eq!(parameter_size(n), text);
        }
    }
}

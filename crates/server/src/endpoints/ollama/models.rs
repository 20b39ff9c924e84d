//! Answers Ollama's clients about models: the list, one model, the models in memory, the version.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use tokenmill::load::{LoadedDevice, ModelFacts, Task};
use tokenmill_backend::ExecutorLimits;
use tokenmill_text::calls::ReplyFormat;

use super::timestamp;
use crate::{
    ApiError, App, Models,
    app::{Call, Retention},
    dialects::llama_cpp::infill::has_marks,
    model_names::tagged,
    models::{Listed, Role},
    requests::{fields::label, request_table::request},
};

/// Implemented version of Ollama. Clients compare it with the version that they need.
const OLLAMA_VERSION: &str = "0.13.5";

/// When a model is unloaded that never is.
const NEVER: &str = "9999-01-01T00:00:00Z";

/// Holds a model's entry in lists, loaded or not.
#[derive(Clone, Copy)]
struct Card<'a> {
    /// The name that responses carry.
    name: &'a str,
    /// Input of the digest, besides the model's facts.
    own_name: &'a str,
    facts: Option<&'a ModelFacts>,
    created_s: u64,
}

impl<'a> Card<'a> {
    fn of(app: &'a App) -> Self {
        Self {
            name: app.model.name(),
            own_name: match app.retention {
                Retention::Fixed => app.model.model().name(),
                Retention::Managed => app.model.name(),
            },
            facts: app.model.model().facts(),
            created_s: app.model.created_s(),
        }
    }

    fn of_listed(listed: &'a Listed, created_s: u64) -> Self {
        match &listed.status.app {
            Some(app) => Self::of(app),
            None => Self {
                name: listed.spec.name(),
                own_name: listed.spec.name(),
                facts: listed.facts.as_ref(),
                created_s,
            },
        }
    }
}

/// The names of the models, as `/api/tags`: each with a tag, as Ollama lists them. Ollama's clients offer all of them, and there is no field
/// for a fault, so models whose files cannot be read are left out; `/v1/models` has them with the reason.
pub(crate) async fn tags(State(models): State<Models>) -> Response {
    models.look_through_folder().await;
    let entries: Vec<Value> = match models.only() {
        Some(app) => app
            .model
            .names()
            .iter()
            .map(|name| entry(Card::of(app), name))
            .collect(),
        None => (models.listed().iter())
            .filter(|listed| !listed.is_unreadable())
            .flat_map(|listed| {
                let card = Card::of_listed(listed, models.created_s());
                listed.spec.names.iter().map(move |name| entry(card, name))
            })
            .collect(),
    };
    Json(json!({ "models": entries })).into_response()
}

/// The models in memory under their first names, as `/api/ps`.
pub(crate) async fn ps(State(models): State<Models>) -> Response {
    let running: Vec<Value> = match models.only() {
        Some(app) => vec![running(app, NEVER.to_owned())],
        None => (models.listed().iter())
            .filter_map(|listed| {
                let app = listed.status.app.as_ref()?;
                let expires_at = listed.status.expires_in.map_or_else(
                    || NEVER.to_owned(),
                    |time| {
                        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                        timestamp(now.saturating_add(time))
                    },
                );
                Some(running(app, expires_at))
            })
            .collect(),
    };
    Json(json!({ "models": running })).into_response()
}

fn running(app: &App, expires_at: String) -> Value {
    let model = app.model.model();
    let own_bytes = model.memory().map_or(0, |plan| plan.total_bytes() as u64);
    let on_host = model.memory().and_then(|plan| plan.on_host.as_deref());
    let n_bytes = own_bytes + on_host.map_or(0, |plan| plan.total_bytes() as u64);
    let is_on_gpu = matches!(
        model.device(),
        LoadedDevice::Cuda { .. } | LoadedDevice::Group { .. } | LoadedDevice::Split { .. }
    );
    let mut running = entry(Card::of(app), app.model.name());
    running["size"] = n_bytes.into();
    let device_bytes = model.memory().map_or(0, |plan| plan.device_bytes() as u64);
    running["size_vram"] = if is_on_gpu { device_bytes } else { 0 }.into();
    running["context_length"] = app.engine().limits().n_ctx.into();
    running["expires_at"] = expires_at.into();
    running
}

/// The version, as `/api/version`.
pub(crate) async fn version() -> Response {
    let server = concat!("tokenmill ", env!("CARGO_PKG_VERSION"));
    Json(json!({ "version": OLLAMA_VERSION, "server": server })).into_response()
}

request! {
    /// A request to describe a model.
    pub(in crate::endpoints) struct ShowRequest {
        required {}
        optional {
            /// Model name.
            model: String = "",
            /// Older name of `model`.
            name: String = "the older name of `model`",
        }
        others {
            label("verbose"),
        }
    }
}

impl ShowRequest {
    /// Returns the model's name. Clients that write both fields mean the newer.
    fn name(&self) -> Option<&str> {
        let model = self.model.as_deref().filter(|model| !model.is_empty());
        model.or(self.name.as_deref())
    }
}

/// Describes a model, as `/api/show`. One that is not loaded is not loaded for it.
pub(crate) async fn show(models: Models, mut call: Call) -> Result<Response, ApiError> {
    let request: ShowRequest = call.read(ShowRequest::TABLE.fields())?;
    if let Some(app) = models.only() {
        app.model.find(request.name())?;
        return Ok(Json(shown(app)).into_response());
    }
    let idx = models.find(request.name(), Role::Chat).await?;
    let listed = &models.listed_one(idx);
    let card = Card::of_listed(listed, models.created_s());
    let reply = match &listed.status.app {
        Some(app) => shown(app),
        None => json!({
            "modelfile": format!("FROM {}", card.name),
            "parameters": "",
            "license": license(card.facts),
            "template": "",
            "details": details(card.facts),
            "model_info": model_info(card.facts, None),
            "capabilities": capabilities_of_unloaded(listed),
            "modified_at": modified_at(card),
        }),
    };
    Ok(Json(reply).into_response())
}

fn shown(app: &App) -> Value {
    json!({
        "modelfile": format!("FROM {}", app.model.model().name()),
        "parameters": "",
        "license": license(app.model.model().facts()),
        "template": app.model.chat_template().unwrap_or_default(),
        "details": details(app.model.model().facts()),
        "model_info": model_info(app.model.model().facts(), Some(app.engine().limits())),
        "capabilities": capabilities_of(app),
        "modified_at": modified_at(Card::of(app)),
    })
}

fn entry(card: Card<'_>, name: &str) -> Value {
    let n_bytes = card.facts.map_or(0, |facts| facts.weights_bytes);
    json!({
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": modified_at(card),
        "size": n_bytes,
        "digest": digest(card),
        "details": details(card.facts),
    })
}

fn modified_at(card: Card<'_>) -> String {
    timestamp(Duration::from_secs(card.created_s))
}

fn details(facts: Option<&ModelFacts>) -> Value {
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

fn license(facts: Option<&ModelFacts>) -> &str {
    facts
        .and_then(|facts| facts.license.as_deref())
        .unwrap_or_default()
}

/// A count of parameters as people write it.
fn parameter_size(n_params: u64) -> String {
    match n_params as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n => format!("{:.0}K", n / 1e3),
    }
}

/// Distinguishes loaded models. It is made from their known facts, not from the bytes of their files.
fn digest(card: Card<'_>) -> String {
    let known = format!("{:?} {}", card.facts, card.own_name);
    // FNV-1a, 64 bits.
    let hash = known.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Describes a model by its files; the context is the server's, which may be shorter than the model's.
fn model_info(facts: Option<&ModelFacts>, limits: Option<&ExecutorLimits>) -> Value {
    let mut info = Map::new();
    if let Some(facts) = facts {
        let of_arch = |name: &str| format!("{}.{name}", facts.arch);
        info.insert("general.architecture".to_owned(), facts.arch.clone().into());
        info.insert("general.parameter_count".to_owned(), facts.n_params.into());
        if let Some(license) = &facts.license {
            info.insert("general.license".to_owned(), license.clone().into());
        }
        let n_ctx = limits.map_or(facts.n_ctx_train, |limits| limits.n_ctx);
        info.insert(of_arch("context_length"), n_ctx.into());
        if let Some(limits) = limits {
            info.insert(of_arch("embedding_length"), limits.n_embd.into());
            info.insert(of_arch("vocab_size"), limits.n_vocab.into());
        }
    }
    Value::Object(info)
}

/// Lists the capabilities of a model that is not loaded, as far as its header tells them.
pub(crate) fn capabilities_of_unloaded(listed: &Listed) -> Vec<&'static str> {
    let only_decides = |facts: &ModelFacts| facts.task == Task::Decisions;
    let mut capabilities = vec![if listed.facts.as_ref().is_some_and(only_decides) {
        "decision"
    } else if listed.role == Role::Chat {
        "completion"
    } else {
        "embedding"
    }];
    if decides_with_labels(listed.facts.as_ref()) {
        capabilities.push("decision");
    }
    if listed.sees {
        capabilities.push("vision");
    }
    capabilities
}

/// Returns whether a model was trained for decisions and writes text as well.
fn decides_with_labels(facts: Option<&ModelFacts>) -> bool {
    facts.is_some_and(|facts| facts.decision_family.is_some() && facts.task == Task::Text)
}

/// Lists a loaded model's capabilities.
pub(crate) fn capabilities_of(app: &App) -> Vec<&'static str> {
    if app.model.model().words().has_decision_head() {
        return vec!["decision"];
    }
    if app.engine().limits().is_encoder {
        return vec!["embedding"];
    }
    let mut capabilities = vec!["completion"];
    if let Some(template) = app.model.chat_template() {
        // Other models get tools in the prompt too; models that were trained for tools have them in their templates.
        let words = app.model.model().words();
        if words.template().is_some_and(|template| template.names("tools")) {
            capabilities.push("tools");
        }
        if ReplyFormat::of_template(template).has_reasoning() {
            capabilities.push("thinking");
        }
    }
    if has_marks(app.model.tokenizer()) {
        capabilities.push("insert");
    }
    if decides_with_labels(app.model.model().facts()) {
        capabilities.push("decision");
    }
    if app.model.model().sees() {
        capabilities.push("vision");
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

//! `GET /v1/models` and `GET /v1/models/{name}`.

use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
    http::{Method, Uri},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokenmill::load::{ModelFacts, Task};
use tokenmill_text::template::CivilTime;

use super::{
    ENDPOINTS,
    endpoint::Endpoint,
    ollama::models::{capabilities_of, capabilities_of_unloaded},
};
use crate::{
    ApiError, App, Dialect, Models,
    app::error_response,
    errors::api_error::shortened,
    model_names::near_names,
    models::{Doing, Listed, Role},
    requests::paths::AskedPath,
    telemetry::request_id::RequestId,
};

fn entry(app: &App, name: &str, parent: Option<&str>) -> Value {
    let model = app.model.model();
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": app.model.created_s(),
        "created_at": date_time(app.model.created_s()),
        "owned_by": "tokenmill",
        "parent": parent,
        "max_model_len": app.model.engine().limits().n_ctx,
        "architecture": modalities(model.facts(), model.sees()),
        "aliases": app.model.names(),
        "tags": app.config.model_tags,
        "capabilities": capabilities(app),
        "has_chat_template": app.model.chat_template().is_some(),
        "meta": meta(app),
    })
}

/// Describes a model's vocabulary and network in llama.cpp's fields.
fn meta(app: &App) -> Value {
    let limits = app.model.engine().limits();
    let facts = app.model.model().facts();
    json!({
        "n_vocab": app.model.tokenizer().n_vocab(),
        "n_ctx": limits.n_ctx,
        "n_ctx_train": facts.map(|facts| facts.n_ctx_train),
        "n_embd": limits.n_embd,
        "n_params": facts.map(|facts| facts.n_params),
        "size": facts.map(|facts| facts.weights_bytes),
        "ftype": facts.map(|facts| facts.main_type),
    })
}

/// Lists a loaded model's capabilities: in Ollama's words, as `/api/show`, and in llama.cpp's.
fn capabilities(app: &App) -> Vec<&'static str> {
    in_both_words(capabilities_of(app))
}

/// Adds llama.cpp's word for a model that sees to Ollama's.
fn in_both_words(mut capabilities: Vec<&'static str>) -> Vec<&'static str> {
    if capabilities.contains(&"vision") {
        capabilities.push("multimodal");
    }
    capabilities
}

/// Lists a model's input and output modalities, in the form of OpenRouter's list and of llama.cpp's router.
fn modalities(facts: Option<&ModelFacts>, sees: bool) -> Value {
    let input: &[&str] = if sees { &["text", "image"] } else { &["text"] };
    let output = match facts.map(|facts| facts.task) {
        None | Some(Task::Text) => "text",
        Some(Task::Embeddings) => "embeddings",
        Some(Task::Ranks) => "rerank",
        Some(Task::Decisions) => "decisions",
    };
    json!({ "input_modalities": input, "output_modalities": [output] })
}

/// A time as Anthropic's API writes it.
fn date_time(unix_s: u64) -> String {
    format!(
        "{}Z",
        CivilTime::from_unix_seconds(i64::try_from(unix_s).unwrap_or(0))
    )
}

/// All names of a loaded model, each with the model that it is an adapter of, if it is one.
fn names(app: &App) -> Vec<(String, Option<&str>)> {
    let adapters = app.model.model().adapters().into_iter();
    let adapters = adapters.map(|adapter| (adapter.name, Some(app.model.name())));
    (app.model.names().iter())
        .map(|name| (name.clone(), None))
        .chain(adapters)
        .collect()
}

/// The names of one of several models, in the form of a server of one, and with its state.
fn entries_of(models: &Models, listed: &Listed) -> Vec<Value> {
    let created_s = models.created_s();
    let status = status_of(listed);
    let entries: Vec<Value> = if let Some(app) = &listed.status.app {
        (names(app).iter())
            .map(|(name, parent)| entry(app, name, *parent))
            .collect()
    } else {
        let own = listed.spec.names.iter().map(|name| (name, None));
        let adapters = (listed.spec.adapters.iter()).map(|name| (name, Some(listed.spec.name())));
        own.chain(adapters)
            .map(|(name, parent)| {
                json!({
                    "id": name,
                    "object": "model",
                    "type": "model",
                    "display_name": name,
                    "created": created_s,
                    "created_at": date_time(created_s),
                    "owned_by": "tokenmill",
                    "parent": parent,
                    "max_model_len": null,
                    "architecture": modalities(listed.facts.as_ref(), listed.sees),
                    "aliases": listed.spec.names,
                    "tags": models.config().model_tags,
                    "capabilities": in_both_words(capabilities_of_unloaded(listed)),
                    "has_chat_template": listed.has_chat_template,
                })
            })
            .collect()
    };
    let with_status = |mut entry: Value| {
        entry["status"] = status.clone();
        entry
    };
    entries.into_iter().map(with_status).collect()
}

/// Returns the state of one of several models in llama.cpp's form; a model that failed to load is unloaded, with the reason.
pub(crate) fn status_of(listed: &Listed) -> Value {
    let status = &listed.status;
    let value = match status.doing {
        Doing::Loaded => "loaded",
        Doing::Loading => "loading",
        Doing::Unloaded | Doing::Unloading => "unloaded",
    };
    let mut status_of = json!({ "value": value });
    if let (Some(failure), "unloaded") = (&status.failure, value) {
        status_of["failed"] = true.into();
        status_of["reason"] = failure.to_string().into();
    }
    status_of
}

/// Lists the names that the models and their adapters answer to.
pub(crate) async fn list(State(models): State<Models>) -> Response {
    models.look_through_folder().await;
    let data: Vec<Value> = match models.only() {
        Some(app) => (names(app).iter())
            .map(|(name, parent)| entry(app, name, *parent))
            .collect(),
        None => (models.listed().iter())
            .flat_map(|listed| entries_of(&models, listed))
            .collect(),
    };
    // Some clients look for a second list with names of its own.
    let second: Vec<Value> = (data.iter())
        .map(|entry| {
            let (name, n_ctx) = (&entry["id"], &entry["max_model_len"]);
            let day = entry["created_at"].as_str().and_then(|time| time.get(..10));
            json!({ "slug": name, "display_name": name, "name": name, "model": name, "context_window": n_ctx,
                "description": name, "release_date": day, "tags": entry["tags"], "capabilities": entry["capabilities"] })
        })
        .collect();
    Json(json!({ "object": "list", "data": data, "models": second })).into_response()
}

/// Describes one of them.
pub(crate) async fn one(
    State(models): State<Models>,
    name: Result<Path<String>, PathRejection>,
    request_id: Extension<RequestId>,
    method: Method,
    uri: Uri,
) -> Response {
    let Ok(Path(name)) = name else {
        return not_found(request_id, method, uri).await;
    };
    let found = match models.only() {
        Some(app) => app.model.choose(Some(&name)).map(|chosen| {
            let parent = chosen.adapter.as_ref().map(|_| app.model.name());
            // Under any other name the model describes itself by its own.
            let is_own = app.model.find(Some(&name)).is_ok();
            entry(app, if is_own { &name } else { &chosen.name }, parent)
        }),
        None => models.find(Some(&name), Role::Chat).await.map(|idx| {
            let entries = entries_of(&models, &models.listed_one(idx));
            let at = entries.iter().position(|entry| entry["id"] == name.as_str());
            entries[at.unwrap_or(0)].clone()
        }),
    };
    match found {
        Ok(entry) => Json(entry).into_response(),
        Err(error) => error_response(&error, Dialect::OpenAi, &request_id),
    }
}

/// Answers requests to unknown paths.
pub(crate) async fn not_found(request_id: Extension<RequestId>, method: Method, uri: Uri) -> Response {
    let error = ApiError::NotFound {
        method: method.to_string(),
        path: shortened(uri.path()).into_owned(),
        near: near_paths(uri.path()).join(", "),
    };
    error_response(&error, Dialect::of_path(uri.path()), &request_id)
}

/// Paths whose letters are like those of `path`.
fn near_paths(path: &str) -> Vec<String> {
    // The slash that all paths have does not count as likeness, and a parameter in a path is no name.
    let paths = ENDPOINTS.iter().flat_map(Endpoint::paths);
    let names = paths
        .filter(|path| !path.contains('{') && path.len() > 1)
        .map(|path| path.trim_start_matches('/'));
    let near = near_names(path.trim_start_matches('/'), names);
    near.into_iter().map(|name| format!("/{name}")).collect()
}

/// Answers requests with a wrong method.
pub(crate) async fn wrong_method(
    request_id: Extension<RequestId>,
    asked: Option<Extension<AskedPath>>,
    method: Method,
    uri: Uri,
) -> Response {
    let error = ApiError::MethodNotAllowed {
        method: method.to_string(),
        path: AskedPath::or(asked, &uri),
        answered: methods_of(uri.path()).join(" and "),
    };
    error_response(&error, Dialect::of_path(uri.path()), &request_id)
}

/// The methods that a path of the router answers. A path in the table itself is not the name in another path.
fn methods_of(path: &str) -> Vec<&'static str> {
    let of = |leads: &dyn Fn(&str) -> bool| -> Vec<&'static str> {
        let rows = ENDPOINTS.iter().filter(|row| row.paths().any(leads));
        rows.map(|row| row.verb.name()).collect()
    };
    let exact = of(&|route| route == path);
    if exact.is_empty() {
        of(&|route| has_form(route, path))
    } else {
        exact
    }
}

/// Says whether a path is a route with values for its placeholders.
fn has_form(route: &str, path: &str) -> bool {
    let (of_route, of_path): (Vec<&str>, Vec<&str>) = (route.split('/').collect(), path.split('/').collect());
    let takes_rest = of_route.last().is_some_and(|piece| piece.starts_with("{*"));
    let is_as_long = of_route.len() == of_path.len() || takes_rest && of_route.len() < of_path.len();
    is_as_long
        && (of_route.iter().zip(&of_path)).all(|(piece, found)| piece.starts_with('{') || piece == found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_path_is_told_what_is_near_it() {
        for (path, expected) in [
            ("/v1/message", "/v1/messages"),
            ("/v1/chat/completion", "/v1/chat/completions"),
            ("/v1/embedding", "/v1/embeddings"),
            ("/api/tag", "/api/tags"),
        ] {
            let near = near_paths(path);
            assert_eq!(near.first().map(String::as_str), Some(expected), "{near:?}");
        }
        for path in ["/", "/favicon.ico", "/v1/zzzzzzzz"] {
            assert_eq!(near_paths(path), [""; 0], "{path}");
        }
    }

    #[test]
    fn a_path_knows_its_methods() {
        for (path, expected) in [
            ("/v1/chat/completions", &["POST"][..]),
            ("/v1/models", &["GET"]),
            ("/v1/responses/input_tokens", &["POST"]),
            ("/v1/responses/resp_1", &["GET", "DELETE"]),
            ("/v1/models/owner/name", &["GET"]),
            ("/nowhere", &[]),
        ] {
            assert_eq!(methods_of(path), expected, "{path}");
        }
    }
}

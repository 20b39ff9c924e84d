//! `GET /openapi.json`: the description of the API, made from the field tables.

use std::sync::LazyLock;

use axum::{
    body::Bytes,
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use crate::{
    dialects::{llama_cpp, ollama},
    endpoints::{adapters, tables},
    requests::fields::{Field, Support},
};

/// Serves the description.
pub(crate) async fn openapi() -> Response {
    // Serialized once, so that answers share its bytes, even those that no client reads.
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, DOCUMENT.clone()).into_response()
}

/// Endpoints with a body: path, what they do, their fields, and those of them that are required.
fn posts() -> [(
    &'static str,
    &'static str,
    &'static [Field],
    &'static [&'static str],
); 29] {
    [
        (
            "/v1/chat/completions",
            "Answer a conversation",
            tables::chat(),
            &["messages"],
        ),
        (
            "/v1/completions",
            "Continue a text",
            tables::completion(),
            &["prompt"],
        ),
        (
            "/v1/chat/completions/render",
            "A conversation's prompt as token ids",
            tables::chat(),
            &["messages"],
        ),
        (
            "/v1/chat/completions/input_tokens",
            "Count the tokens of a conversation",
            tables::chat(),
            &["messages"],
        ),
        (
            "/v1/responses/input_tokens",
            "Count the tokens of a request to /v1/responses",
            tables::response(),
            &["input"],
        ),
        (
            "/v1/completions/render",
            "Prompts as token ids",
            tables::completion(),
            &["prompt"],
        ),
        ("/v1/embeddings", "Embed texts", tables::embedding(), &["input"]),
        (
            "/v1/rerank",
            "Rank documents by how well they answer a query",
            tables::rerank(),
            &["query", "documents"],
        ),
        (
            "/v1/reranking",
            "The same as `/v1/rerank`",
            tables::rerank(),
            &["query", "documents"],
        ),
        (
            "/v2/rerank",
            "The same as `/v1/rerank`",
            tables::rerank(),
            &["query", "documents"],
        ),
        (
            "/v1/responses",
            "Answer a conversation, or continue one that is stored",
            tables::response(),
            &["input"],
        ),
        (
            "/v1/messages",
            "Answer a conversation, Anthropic's API",
            tables::messages(),
            &["messages", "max_tokens"],
        ),
        (
            "/v1/messages/count_tokens",
            "Count a conversation's tokens",
            tables::messages(),
            &["messages"],
        ),
        (
            "/completion",
            "Continue a text, llama.cpp's API",
            tables::llama_completion(),
            &["prompt"],
        ),
        (
            "/infill",
            "Write what stands between two texts, llama.cpp's API",
            tables::llama_infill(),
            &[],
        ),
        (
            "/embedding",
            "Embed texts, llama.cpp's API",
            tables::llama_embedding(),
            &[],
        ),
        (
            "/v1/load_lora_adapter",
            "Load an adapter, vLLM's API",
            adapters::LOAD,
            &["lora_name", "lora_path"],
        ),
        (
            "/v1/unload_lora_adapter",
            "Unload an adapter, vLLM's API",
            adapters::UNLOAD,
            &["lora_name"],
        ),
        (
            "/slots/{id}",
            "Save, restore or erase a conversation, llama.cpp's API",
            llama_cpp::SLOT_FILE,
            &[],
        ),
        (
            "/v1/models/load",
            "Have one of several models loaded, llama.cpp's API",
            llama_cpp::MANAGE,
            &["model"],
        ),
        (
            "/v1/models/unload",
            "Have one of several models unloaded, llama.cpp's API",
            llama_cpp::MANAGE,
            &["model"],
        ),
        ("/tokenize", "Text to token ids", llama_cpp::TOKENIZE, &[]),
        (
            "/detokenize",
            "Token ids to text",
            llama_cpp::DETOKENIZE,
            &["tokens"],
        ),
        (
            "/apply-template",
            "Render a conversation",
            llama_cpp::APPLY_TEMPLATE,
            &["messages"],
        ),
        (
            "/api/chat",
            "Answer a conversation, Ollama's API",
            tables::ollama_chat(),
            &[],
        ),
        (
            "/api/generate",
            "Answer a prompt, Ollama's API",
            tables::ollama_generate(),
            &[],
        ),
        (
            "/api/embed",
            "Embed texts, Ollama's API",
            tables::ollama_embed(),
            &["input"],
        ),
        (
            "/api/embeddings",
            "Embed a text, Ollama's older API",
            ollama::embed::OLDER_FIELDS,
            &["prompt"],
        ),
        (
            "/api/show",
            "Describe the model, Ollama's API",
            ollama::embed::SHOW_FIELDS,
            &[],
        ),
    ]
}

const GETS: [(&str, &str); 24] = [
    (
        "/v1/models",
        "List the names of the models, and what each of several is doing",
    ),
    ("/v1/models/{name}", "Describe one of them"),
    (
        "/metrics",
        "Figures in Prometheus text, or OpenMetrics where asked for",
    ),
    (
        "/v1/responses/{id}",
        "An answer of `/v1/responses` that is stored",
    ),
    ("/v1/loads", "How busy the engine is"),
    ("/loads", "The same as `/v1/loads`"),
    ("/version", "The program's version"),
    ("/get_model_info", "What is served"),
    ("/model_info", "The same as `/get_model_info`"),
    ("/server_info", "What is served, and how"),
    ("/get_server_info", "The same as `/server_info`"),
    ("/tokenizer_info", "Special tokens and chat template"),
    ("/api/tags", "The names of the models, Ollama's API"),
    ("/api/ps", "The models in memory, Ollama's API"),
    ("/api/version", "The version of Ollama's API"),
    ("/lora-adapters", "The adapters, llama.cpp's API"),
    ("/props", "The model and default values, llama.cpp's API"),
    ("/slots", "Places in a batch, llama.cpp's API"),
    ("/livez", "Whether the engine shows signs of life"),
    ("/readyz", "Whether a request sent now would be taken"),
    ("/health", "The same in the words of llama.cpp"),
    ("/v1/health", "The same as `/health`"),
    ("/openapi.json", "This description"),
    ("/", "The web page"),
];

fn document() -> Value {
    let mut paths = Map::new();
    for (path, summary, fields, required) in posts() {
        let properties: Map<String, Value> = fields
            .iter()
            .map(|field| (field.name.to_owned(), property(field)))
            .collect();
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        paths.insert(
            path.to_owned(),
            json!({ "post": {
                "summary": summary,
                "requestBody": { "required": true, "content": { "application/json": { "schema": schema } } },
                "responses": { "200": { "description": "the answer" }, "default": { "$ref": "#/components/responses/error" } },
            }}),
        );
    }
    for (path, summary) in GETS {
        let mut get = json!({ "summary": summary, "responses": { "200": { "description": "the answer" } } });
        for name in ["name", "id"] {
            if path.contains(&format!("{{{name}}}")) {
                get["parameters"] = json!([
                    { "name": name, "in": "path", "required": true, "schema": { "type": "string" } }
                ]);
            }
        }
        let mut methods = json!({ "get": get });
        if path == "/v1/responses/{id}" {
            methods["delete"] = methods["get"].clone();
            methods["delete"]["summary"] = "Forget an answer that is stored".into();
        }
        paths.insert(path.to_owned(), methods);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "tokenmill", "version": env!("CARGO_PKG_VERSION") },
        "security": [{ "key": [] }, {}],
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            "responses": { "error": {
                "description": "what was wrong",
                "content": { "application/json": { "schema": { "type": "object", "properties": {
                    "error": { "type": "object", "properties": {
                        "message": { "type": "string" },
                        "type": { "type": "string" },
                        "code": { "type": ["string", "null"] },
                        "param": { "type": ["string", "null"] },
                    }},
                }}}},
            }},
        },
    })
}

fn property(field: &Field) -> Value {
    let description = match field.support {
        Support::Yes => field.note.to_owned(),
        Support::Label => "accepted; changes nothing about the answer".to_owned(),
        Support::Ignored(why) => format!("ignored: {why}"),
        Support::Refused(why) => format!("refused: {why}"),
        Support::Only { values, why } => format!("only {}: {why}", values.join(", ")),
        Support::AllBut { values, why } => format!("all but {}: {why}", values.join(", ")),
    };
    json!({ "description": description, "deprecated": !matches!(field.support, Support::Yes | Support::Label | Support::Ignored(_)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_every_field_of_every_endpoint() {
        let document = document();
        for (path, _, fields, required) in posts() {
            let schema =
                &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
            let properties = schema["properties"].as_object().expect("properties");
            assert_eq!(
                properties.len(),
                fields.len(),
                "a field of {path} stands in its table twice"
            );
            assert!(
                required.iter().all(|name| properties.contains_key(*name)),
                "{path}"
            );
        }
    }
}

//! The endpoints: [`ENDPOINTS`] lists them, and each file has the handlers of one, from a parsed request to a reply.
//!
//! Invariant: nothing else lists endpoints. The router, the key check, the levels of log lines, `/openapi.json` and `docs/api-fields.md` are
//! loops over the table.

mod adapters;
mod chat;
mod completions;
mod decisions;
mod embeddings;
pub(crate) mod endpoint;
mod frame;
mod gateway;
mod health;
mod llama_cpp;
mod manage;
mod media_folder;
mod messages;
mod metrics;
pub(crate) mod models;
mod ollama;
mod openapi;
pub(crate) mod page;
pub(crate) mod path_forms;
mod render;
mod rerank;
mod responses;
mod score;
mod slots;
pub mod tables;
mod words;

use axum::routing::any;

use self::endpoint::{
    Endpoint,
    Verb::{Any, Delete, Get, Post},
    row,
};
use crate::{
    Dialect::{Anthropic, Ollama, OpenAi, SystemOne},
    models::Role,
};

/// Every endpoint of the server: method, form of errors, path, function, then its summary and its other properties.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    row(Post, OpenAi, "/v1/chat/completions", |row, _| {
        row.with_model(chat::chat)
    })
    .says("Answer a conversation")
    .reads(tables::CHAT),
    row(Post, OpenAi, "/v1/chat/completions/render", |row, _| {
        row.with_model(chat::render)
    })
    .says("A conversation's prompt as token ids")
    .reads(tables::CHAT),
    row(Post, OpenAi, "/v1/chat/completions/input_tokens", |row, _| {
        row.with_model(chat::count_tokens)
    })
    .says("Count the tokens of a conversation")
    .reads(tables::CHAT),
    row(Post, OpenAi, "/v1/completions", |row, _| {
        row.with_model(completions::completions)
    })
    .says("Continue a text")
    .reads(tables::COMPLETION),
    row(Post, OpenAi, "/v1/completions/render", |row, _| {
        row.with_model(completions::render)
    })
    .says("Prompts as token ids")
    .reads(tables::COMPLETION),
    row(Post, OpenAi, "/v1/decisions", |row, _| {
        row.with_model(decisions::decisions)
    })
    .says("Answer typed questions with probabilities, OpenAI's and SGLang's API")
    .reads(decisions::DecisionRequest::TABLE)
    .for_role(Role::Decision),
    row(Post, SystemOne, "/v1/systemone", |row, _| {
        row.with_model(decisions::system_one)
    })
    .says("Answer typed questions with probabilities, System One API")
    .reads(decisions::SystemOneRequest::TABLE)
    .for_role(Role::Decision),
    row(Post, OpenAi, "/v1/embeddings", |row, _| {
        row.with_model(embeddings::embeddings)
    })
    .says("Embed texts")
    .reads(tables::EMBEDDING)
    .for_role(Role::Embedding),
    row(Post, OpenAi, "/v1/rerank", |row, _| {
        row.with_model(rerank::rerank)
    })
    .also_at(&["/v2/rerank", "/v1/reranking"])
    .says("Rank documents by how well they answer a query")
    .reads(tables::RERANK)
    .for_role(Role::Rank),
    row(Post, OpenAi, "/v1/score", |row, _| row.with_model(score::score))
        .says("Score pairs of texts, vLLM's API")
        .reads(score::ScoreRequest::TABLE)
        .for_role(Role::Rank),
    row(Post, OpenAi, "/v1/responses", |row, _| {
        row.with_model(responses::responses)
    })
    .says("Answer a conversation, or continue one that is stored")
    .reads(tables::RESPONSE),
    row(Post, OpenAi, "/v1/responses/input_tokens", |row, _| {
        row.with_model(responses::count_tokens)
    })
    .says("Count the tokens of a request to /v1/responses")
    .reads(tables::RESPONSE),
    row(Get, OpenAi, "/v1/responses/{id}", |row, _| {
        row.plain(responses::stored)
    })
    .says("An answer of `/v1/responses` that is stored"),
    row(Delete, OpenAi, "/v1/responses/{id}", |row, _| {
        row.plain(responses::forget)
    })
    .says("Forget an answer that is stored"),
    row(Post, Anthropic, "/v1/messages", |row, _| {
        row.with_model(messages::messages)
    })
    .says("Answer a conversation, Anthropic's API")
    .reads(tables::MESSAGES),
    row(Post, Anthropic, "/v1/messages/count_tokens", |row, _| {
        row.with_model(messages::count_tokens)
    })
    .says("Count a conversation's tokens")
    .reads(tables::MESSAGES_TO_COUNT),
    row(Get, OpenAi, "/v1/models", |row, _| row.plain(models::list))
        .says("List the names of the models, and the state of each of several"),
    row(Get, OpenAi, "/v1/models/{*name}", |row, _| row.plain(models::one)).says("Describe one of them"),
    row(Post, OpenAi, "/v1/models/load", |row, models| {
        match models.only() {
            Some(_) => row.plain(manage::of_one_model),
            None => row.without_model(manage::load),
        }
    })
    .says("Load one of several models, llama.cpp's API")
    .reads(manage::ManageRequest::TABLE.noted(", where there are several models")),
    row(Post, OpenAi, "/v1/models/unload", |row, models| {
        match models.only() {
            Some(_) => row.plain(manage::of_one_model),
            None => row.without_model(manage::unload),
        }
    })
    .says("Unload one of several models, llama.cpp's API")
    .reads(manage::ManageRequest::TABLE.noted(", where there are several models")),
    row(Post, OpenAi, "/v1/load_lora_adapter", |row, _| {
        row.with_model(adapters::load)
    })
    .says("Load an adapter, vLLM's API")
    .reads(adapters::LoadRequest::TABLE),
    row(Post, OpenAi, "/v1/unload_lora_adapter", |row, _| {
        row.with_model(adapters::unload)
    })
    .says("Unload an adapter, vLLM's API")
    .reads(adapters::UnloadRequest::TABLE),
    row(Get, OpenAi, "/lora-adapters", |row, _| row.plain(adapters::list))
        .says("The adapters, llama.cpp's API"),
    row(Post, OpenAi, "/lora-adapters", |row, _| {
        row.with_model(adapters::scale)
    })
    .says("Set the adapters' scales, llama.cpp's API"),
    row(Post, OpenAi, "/completion", |row, _| {
        row.with_model(llama_cpp::completion)
    })
    .says("Continue a text, llama.cpp's API")
    .reads(tables::LLAMA_COMPLETION),
    row(Post, OpenAi, "/infill", |row, _| {
        row.with_model(llama_cpp::infill)
    })
    .says("Write the text between two others, llama.cpp's API")
    .reads(tables::LLAMA_INFILL),
    row(Post, OpenAi, "/embedding", |row, _| {
        row.with_model(embeddings::llama_cpp)
    })
    .says("Embed texts, llama.cpp's API")
    .reads(tables::LLAMA_EMBEDDING)
    .for_role(Role::Embedding),
    row(Get, OpenAi, "/props", |row, _| row.plain(llama_cpp::props))
        .says("The model and default values, llama.cpp's API"),
    row(Get, OpenAi, "/slots", |row, _| row.plain(slots::list)).says("Places in a batch, llama.cpp's API"),
    row(Post, OpenAi, "/slots/{id}", |row, _| row.with_model(slots::act))
        .says("Save, restore or erase a conversation, llama.cpp's API")
        .reads(tables::SLOT_FILE),
    row(Post, OpenAi, "/tokenize", |row, _| {
        row.with_model(words::tokenize)
    })
    .says("Text to token ids")
    .reads(tables::TOKENIZE),
    row(Post, OpenAi, "/detokenize", |row, _| {
        row.with_model(words::detokenize)
    })
    .says("Token ids to text")
    .reads(words::DetokenizeRequest::TABLE),
    row(Post, OpenAi, "/apply-template", |row, _| {
        row.with_model(words::apply_template)
    })
    .says("Render a conversation")
    .reads(tables::APPLY_TEMPLATE),
    row(Get, OpenAi, "/metrics", |row, _| row.plain(metrics::metrics))
        .says("Metrics in Prometheus text, or in OpenMetrics if requested")
        .quiet(),
    row(Get, OpenAi, "/v1/loads", |row, _| row.plain(gateway::loads))
        .also_at(&["/loads"])
        .says("How busy the engine is"),
    row(Get, OpenAi, "/version", |row, _| row.plain(gateway::version)).says("The program's version"),
    row(Get, OpenAi, "/get_model_info", |row, _| row.plain(gateway::model))
        .also_at(&["/model_info"])
        .says("Facts about the served model"),
    row(Get, OpenAi, "/server_info", |row, _| row.plain(gateway::server))
        .also_at(&["/get_server_info"])
        .says("Facts about the server and its model"),
    row(Get, OpenAi, "/tokenizer_info", |row, _| {
        row.plain(gateway::tokenizer)
    })
    .says("Special tokens and chat template"),
    row(Post, Ollama, "/api/chat", |row, _| row.with_model(ollama::chat))
        .says("Answer a conversation, Ollama's API")
        .reads(tables::OLLAMA_CHAT),
    row(Post, Ollama, "/api/generate", |row, _| {
        row.with_model(ollama::generate)
    })
    .says("Answer a prompt, Ollama's API")
    .reads(tables::OLLAMA_GENERATE),
    row(Post, Ollama, "/api/embed", |row, _| {
        row.with_model(ollama::embed::embed)
    })
    .says("Embed texts, Ollama's API")
    .reads(tables::OLLAMA_EMBED)
    .for_role(Role::Embedding),
    row(Post, Ollama, "/api/embeddings", |row, _| {
        row.with_model(ollama::embed::embeddings)
    })
    .says("Embed a text, Ollama's older API")
    .reads(tables::OLLAMA_EMBEDDINGS)
    .for_role(Role::Embedding),
    row(Post, Ollama, "/api/show", |row, _| {
        row.without_model(ollama::models::show)
    })
    .says("Describe the model, Ollama's API")
    .reads(ollama::models::ShowRequest::TABLE),
    row(Get, Ollama, "/api/tags", |row, _| row.plain(ollama::models::tags))
        .says("The names of the models, Ollama's API"),
    row(Get, Ollama, "/api/ps", |row, _| row.plain(ollama::models::ps))
        .says("The models in memory, Ollama's API"),
    row(Get, Ollama, "/api/version", |row, _| {
        row.plain(ollama::models::version)
    })
    .says("The version of Ollama's API"),
    row(Post, Ollama, "/api/pull", |row, _| {
        row.without_model(ollama::manage::pull)
    })
    .says("Download a model, Ollama's API")
    .reads(ollama::manage::PullRequest::TABLE),
    // Without a folder of models it refuses every method, so the description leaves it out.
    row(Delete, Ollama, "/api/delete", |row, models| {
        match models.folder_manager() {
            Some(_) => row.without_model(ollama::manage::delete),
            None => any(ollama::manage::unmanaged),
        }
    })
    .reads(ollama::manage::DeleteRequest::TABLE),
    row(Any, Ollama, "/api/push", |row, _| {
        row.plain(ollama::manage::unmanaged)
    })
    .also_at(&["/api/create", "/api/copy", "/api/blobs/{digest}"]),
    // Probes, the page and the description hold no secrets and answer without a key.
    row(Get, OpenAi, "/livez", |row, _| row.plain(health::live))
        .says("Whether the engine shows signs of life")
        .probe(health::live_while_loading),
    row(Get, OpenAi, "/readyz", |row, _| row.plain(health::ready))
        .says("Whether a request sent now would be accepted")
        .probe(health::ready_while_loading),
    row(Get, OpenAi, "/health", |row, _| row.plain(health::health))
        .also_at(&["/v1/health"])
        .says("The same in llama.cpp's format")
        .probe(health::health_while_loading),
    row(Get, OpenAi, "/openapi.json", |row, _| row.plain(openapi::openapi))
        .says("This description")
        .without_key(),
    row(Get, OpenAi, "/", |row, _| row.plain(page::page))
        .says("The web page")
        .without_key()
        .quiet(),
    row(Get, OpenAi, "/web/{name}", |row, _| row.plain(page::page))
        .without_key()
        .quiet(),
];

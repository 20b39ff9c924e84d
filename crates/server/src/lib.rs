//! The wire: OpenAI's, Anthropic's, Ollama's and llama.cpp's APIs over HTTP, for any number of clients.
//!
//! A [`ServedModel`] (a loaded [`Model`](tokenmill::Model) and its names) and a [`ServerConfig`] make an [`App`], which is what
//! endpoints see. A server of one model is made of its [`App`]; one of several is made of [`ModelSpec`]s, and loads and unloads them
//! ([`models`]). [`router`] is the whole API as a service that can be nested or tested without a socket, and [`Server`] puts it
//! on one.
//!
//! The key decision: a parameter that is accepted and ignored hides a bug, so every field of an official
//! API is implemented or refused by name ([`fields`]). Waiting never blocks a thread, a dropped connection drops its
//! generation, and health answers without asking the engine.
//!
//! The modules in the order in which a request passes them; none imports an earlier one: `http` (connections, checks, router),
//! `endpoints` (the table and the handlers), `answers`, [`models`], `app` (a loaded model with the state that its endpoints share), `dialects` (the
//! types of each API), `telemetry`, `requests` (parts that all APIs read), `config`, [`kv_events`], `sockets`, `errors`.
#![forbid(unsafe_code)]

mod answers;
mod app;
mod config;
mod dialects;
mod endpoints;
mod errors;
mod http;
pub mod kv_events;
mod model_names;
pub mod models;
mod requests;
mod sockets;
mod telemetry;

pub use app::{
    App,
    served_model::{Chosen, ServedModel},
    shutdown::Shutdown,
};
pub use config::{
    Listen, ServerConfig, SessionFolder, TlsFiles, keys::ApiKeys, request_defaults::RequestDefaults,
};
pub use dialects::{anthropic, llama_cpp, ollama, openai, openai::chat::Turn};
pub use endpoints::tables;
pub use errors::{api_error::ApiError, dialect::Dialect};
pub use http::{
    listening::Listening,
    router::router,
    serve::{Drained, ServeError, Server},
};
pub use model_names::near_names;
pub use models::{KeepAlive, ModelLimits, ModelLoader, ModelSpec, Models, ModelsError};
pub use requests::{fields, sampling};
pub use telemetry::metrics::Metrics;
#[cfg(feature = "otel")]
pub use telemetry::otel;

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The wire: OpenAI's, Anthropic's, Ollama's and llama.cpp's APIs over HTTP, for any number of clients.
//!
//! A [`ServedModel`] (a loaded [`Model`](tokenmill::Model) and its names) and a [`ServerConfig`] make an [`App`], which is what
//! endpoints see. A server of one model is made of its [`App`]; one of several is made of [`ModelSpec`]s, and loads and unloads them
//! ([`models`]). [`router`] is the whole API as a service that can be nested or tested without a socket, and [`Server`] puts it
//! on one.
//!
//! The key decision: a parameter that is accepted and ignored is a bug that stays unseen, so every field of an official
//! API is implemented or refused by name ([`fields`]). Waiting never blocks a thread, a dropped connection drops its
//! generation, and health answers without asking the engine.
#![forbid(unsafe_code)]

mod accept_queue;
mod answer_body;
pub mod anthropic;
mod app;
mod auth;
mod config;
mod connections;
mod constraints;
mod dialect;
mod earlier_calls;
mod effort;
mod encoder_queue;
mod endpoints;
mod engine_error;
mod error;
mod error_table;
pub mod fields;
mod foreign;
mod frame;
mod generation_settings;
mod images;
mod infill;
mod intake;
mod keys;
pub mod kv_events;
mod line_bounds;
mod listening;
pub mod llama_cpp;
mod llama_figures;
mod mask_figures;
mod media_folder;
mod metrics;
mod model_names;
pub mod models;
mod name_bounds;
mod off_thread;
pub mod ollama;
pub mod openai;
mod origin;
#[cfg(feature = "otel")]
pub mod otel;
mod outcome;
mod paths;
mod prefix_dir_figures;
mod prometheus_text;
mod prompt_scores;
mod raw_prompt;
mod reply;
mod request_defaults;
mod request_id;
mod request_log;
mod router;
pub mod sampling;
mod score_sheet;
mod scores;
mod serve;
mod served_model;
mod shape_sizes;
mod shutdown;
mod silent_fields;
mod slots;
mod sse;
mod stored;
mod stream_progress;
pub mod tables;
mod throughput;
mod tools;
#[cfg(unix)]
mod unix_socket;
mod value_words;
mod write_timeout;

pub use app::App;
pub use config::{Listen, ServerConfig, SessionFolder, TlsFiles};
pub use dialect::Dialect;
pub use error::ApiError;
pub use keys::ApiKeys;
pub use listening::Listening;
pub use metrics::Metrics;
pub use model_names::near_names;
pub use models::{KeepAlive, ModelLimits, ModelLoader, ModelSpec, Models, ModelsError};
pub use openai::chat::Turn;
pub use request_defaults::RequestDefaults;
pub use router::router;
pub use serve::{Drained, ServeError, Server};
pub use served_model::{Chosen, ServedModel};
pub use shutdown::Shutdown;

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The endpoints: one file each, from a parsed request to a reply.

pub(crate) mod adapters;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod frame;
pub(crate) mod gateway;
pub(crate) mod health;
pub(crate) mod llama_cpp;
pub(crate) mod manage;
mod media_folder;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod ollama;
pub(crate) mod openapi;
pub(crate) mod page;
pub(crate) mod render;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod slots;
pub mod tables;
pub(crate) mod words;

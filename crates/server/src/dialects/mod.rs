//! The APIs: request and response types, a folder each, or a file for one of a single endpoint.
//!
//! Types and their checks only; the handlers are in [`endpoints`](crate::endpoints).

pub mod anthropic;
pub mod llama_cpp;
pub mod ollama;
pub mod openai;
pub(crate) mod sglang;

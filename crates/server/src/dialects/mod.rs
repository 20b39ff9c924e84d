//! The four APIs: request and response types, a folder each.
//!
//! Types and their checks only; the handlers are in [`endpoints`](crate::endpoints).

pub mod anthropic;
pub mod llama_cpp;
pub mod ollama;
pub mod openai;

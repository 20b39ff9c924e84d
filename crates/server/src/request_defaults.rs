//! [`RequestDefaults`]: what requests that are silent are taken to ask for.
//!
//! Separate from what fills them in, which reads requests. Invariant: values only, by llama.cpp's names.

use serde_json::{Map, Value};

/// Defaults of the server's operator, in the place of those of each API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestDefaults {
    /// Fields of sampling, by llama.cpp's names: `temperature`, `top_k`, `repeat_penalty`, `seed`, …
    pub sampling: Map<String, Value>,
    /// Most tokens of an answer.
    pub max_tokens: Option<u32>,
    /// Most tokens of reasoning.
    pub thinking_budget: Option<u32>,
    /// Whether answers hold their prompt, under `__verbose`, as llama.cpp's do with `--verbose`.
    pub is_verbose: bool,
}

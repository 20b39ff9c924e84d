//! [`RequestDefaults`] holds default values for fields that a request does not set.
//!
//! Invariant: it holds only values, under llama.cpp's names.

use serde_json::{Map, Value};

/// Holds the operator's defaults, which replace those of each API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestDefaults {
    /// Sampling fields under llama.cpp's names: `temperature`, `top_k`, `repeat_penalty`, `seed`, …
    pub sampling: Map<String, Value>,
    /// Most tokens of an answer.
    pub max_tokens: Option<u32>,
    /// Most tokens of reasoning.
    pub thinking_budget: Option<u32>,
    /// Whether answers include their prompt under `__verbose`, as llama.cpp's do with `--verbose`.
    pub is_verbose: bool,
}

/// Writes a number with the shortest digits of its `f32`, not with those of the nearest `f64`; `null` for one that is not finite.
pub(crate) fn shortest(value: f32) -> Value {
    Value::from(value.to_string().parse().unwrap_or(f64::from(value)))
}

impl RequestDefaults {
    /// Writes a number for [`Self::sampling`]: 0.1 and not 0.10000000149. One that is not finite is `null`, which [`Self::check`] refuses.
    pub fn number(value: f32) -> Value {
        shortest(value)
    }
}

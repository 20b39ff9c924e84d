//! `POST /api/embed` and the older `/api/embeddings`: vectors of texts.

use serde::Deserialize;

use super::KEEP_ALIVE;
use crate::requests::fields::{Field, yes};

/// Fields of `/api/embed`.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes("input", "a text or a list of texts"),
    yes(
        "truncate",
        "default true: a text that is longer than the context is cut; refused with false",
    ),
    yes(
        "dimensions",
        "the number of leading values to keep, scaled to length 1 again; for models trained for it",
    ),
    yes("options", "as on `/api/chat`; nothing is sampled"),
    KEEP_ALIVE,
];

/// Fields of `/api/embeddings`.
pub const OLDER_FIELDS: &[Field] = &[
    yes("model", ""),
    yes("prompt", "a text; its vector has length 1, as on `/api/embed`"),
    yes("options", "as on `/api/chat`; nothing is sampled"),
    KEEP_ALIVE,
];

/// A request to embed.
#[derive(Clone, Debug, Deserialize)]
pub struct EmbedRequest {
    /// Model name.
    pub model: Option<String>,
    /// Texts to embed.
    pub input: Input,
    /// Whether an input that is too long is cut.
    pub truncate: Option<bool>,
    /// Requested length of each vector.
    pub dimensions: Option<usize>,
}

/// The texts of a request.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Input {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// A request to embed in the older form.
#[derive(Clone, Debug, Deserialize)]
pub struct EmbeddingsRequest {
    /// Model name.
    pub model: Option<String>,
    /// Text to embed.
    pub prompt: String,
}

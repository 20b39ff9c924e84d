//! `POST /v1/embeddings`, and llama.cpp's `/embedding`: vectors of texts.

use serde::Deserialize;

use super::completion::PromptInput;
use crate::fields::{Field, label, only, yes};

/// The endpoint's fields.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes("input", "text, token ids, or a list of either"),
    yes("encoding_format", "`float` or `base64`"),
    label("user"),
    yes(
        "dimensions",
        "the first so many numbers, brought to length 1 again: for models trained for it",
    ),
];

/// The fields of llama.cpp's endpoint.
pub const LLAMA_CPP_FIELDS: &[Field] = &[
    yes("model", ""),
    yes("content", "text, token ids, or a list of either"),
    yes("input", "the same as `content`"),
    only("embd_normalize", &["2"], "vectors have length 1"),
    only("encoding_format", &["\"float\""], "`/v1/embeddings` has base64"),
];

/// A request to llama.cpp's endpoint.
#[derive(Clone, Debug, Deserialize)]
pub struct LlamaCppRequest {
    /// Model name.
    pub model: Option<String>,
    /// What to embed.
    pub content: Option<PromptInput>,
    /// The same.
    pub input: Option<PromptInput>,
}

/// An embedding request.
#[derive(Clone, Debug, Deserialize)]
pub struct EmbeddingRequest {
    /// Model name.
    pub model: Option<String>,
    /// What to embed.
    pub input: PromptInput,
    /// How many numbers of each vector are wanted.
    pub dimensions: Option<usize>,
    /// How the numbers are written.
    #[serde(default)]
    pub encoding_format: EncodingFormat,
}

/// How the numbers of an embedding are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// A JSON list.
    #[default]
    Float,
    /// Little-endian f32 in base64.
    Base64,
}

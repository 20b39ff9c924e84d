//! `POST /v1/embeddings`, and llama.cpp's `/embedding`: vectors of texts.

use serde::Deserialize;

use crate::requests::{
    fields::{Field, label, only, yes},
    raw_prompt::RawPrompt,
};

/// The endpoint's fields.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "input",
        "text, token ids, both in turn, an object with `prompt_string` or `content` of text parts, or a list of such inputs",
    ),
    yes("encoding_format", "`float` or `base64`"),
    label("user"),
    yes(
        "dimensions",
        "the number of leading values to keep, scaled to length 1 again; for models trained for it",
    ),
];

/// The fields of llama.cpp's endpoint.
pub const LLAMA_CPP_FIELDS: &[Field] = &[
    yes("model", ""),
    yes("content", "as `input` of `/v1/embeddings`"),
    yes("input", "the same as `content`"),
    only("embd_normalize", &["2"], "vectors have length 1"),
    only("encoding_format", &["\"float\""], "`/v1/embeddings` has base64"),
];

/// A request to llama.cpp's endpoint.
#[derive(Clone, Debug, Deserialize)]
pub struct LlamaCppRequest {
    /// Model name.
    pub model: Option<String>,
    /// The texts to embed.
    pub content: Option<RawPrompt>,
    /// The same.
    pub input: Option<RawPrompt>,
}

/// An embedding request.
#[derive(Clone, Debug, Deserialize)]
pub struct EmbeddingRequest {
    /// Model name.
    pub model: Option<String>,
    /// The texts to embed.
    pub input: RawPrompt,
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

//! `POST /api/generate`: a prompt in, its answer out.

use serde::Deserialize;
use serde_json::Value;

use super::{KEEP_ALIVE, Think};
use crate::{
    ApiError,
    dialects::openai::chat::n_logprobs,
    requests::fields::{Field, only, refused, yes},
};

const NO_IMAGES: &str = "no images come out";

/// The endpoint's fields.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "prompt",
        "a message to the model, or with `raw` or without a chat template a text to continue; without one the answer says \
         that the model is loaded",
    ),
    yes("system", "a message before it; not with `raw`"),
    yes(
        "raw",
        "the prompt is continued as it is; control tokens in it are control tokens",
    ),
    yes(
        "format",
        "`json`, or a JSON schema, which is enforced; begins where the reasoning ends",
    ),
    yes("options", "as on `/api/chat`"),
    yes("stream", "default true: one line of JSON for each piece"),
    yes("think", "as on `/api/chat`"),
    yes("logprobs", ""),
    yes("top_logprobs", "at most 20; needs `logprobs`"),
    KEEP_ALIVE,
    yes(
        "suffix",
        "the text after the answer, for models whose vocabulary has tokens for filling in the middle; not with `system` or `raw`",
    ),
    refused(
        "template",
        "the model's own chat template is used; `raw` continues a text as it is",
    ),
    refused("context", "send the conversation to `/api/chat`"),
    yes("images", "in base64; they come before the prompt"),
    refused("width", NO_IMAGES),
    refused("height", NO_IMAGES),
    refused("steps", NO_IMAGES),
    only(
        "truncate",
        &["false"],
        "a prompt that is too long is refused, never cut",
    ),
    only("shift", &["false"], "an answer ends where the context does"),
    refused("_debug_render_only", "`/apply-template` renders a conversation"),
];

/// A request to generate.
#[derive(Clone, Debug, Deserialize)]
pub struct GenerateRequest {
    /// Model name.
    pub model: Option<String>,
    /// The prompt to answer.
    #[serde(default)]
    pub prompt: String,
    /// A system message.
    #[serde(default)]
    pub system: String,
    /// The text after the answer.
    #[serde(default)]
    pub suffix: String,
    /// Whether the prompt is continued as it is.
    #[serde(default)]
    pub raw: bool,
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// Whether the model thinks.
    pub think: Option<Think>,
    /// Images in base64.
    pub images: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
}

impl GenerateRequest {
    /// How many alternatives to report per token.
    ///
    /// # Errors
    /// Too many, or requested without `logprobs`.
    pub(crate) fn n_logprobs(&self) -> Result<Option<u32>, ApiError> {
        n_logprobs(self.logprobs, self.top_logprobs)
    }
}

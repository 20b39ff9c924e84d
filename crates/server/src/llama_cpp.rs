//! llama.cpp's own API: request types of `/completion` and `/infill`, and the fields of its endpoints for words.
//!
//! Types and their checks only, as in [`openai`](crate::openai). Where the request is silent, the values are llama.cpp's.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    ApiError,
    fields::{Body, Field, label, only, refused, yes},
    openai::{Stop, TokenLimit},
};

const NOT_IMPLEMENTED: &str = "this sampler is not implemented";

/// Fields of `/tokenize`.
pub(crate) const TOKENIZE: &[Field] = &[
    yes("content", "the text; `prompt` is the same, as in vLLM"),
    yes("prompt", ""),
    yes(
        "messages",
        "instead of a text: a conversation, which the chat template writes",
    ),
    yes("add_generation_prompt", "with `messages`; default true"),
    yes("continue_final_message", "with `messages`"),
    yes("chat_template_kwargs", "with `messages`"),
    yes(
        "add_special",
        "whether the tokens that begin and end a text are added; default false; `add_special_tokens` is the same, as in \
         vLLM",
    ),
    yes("add_special_tokens", ""),
    yes(
        "parse_special",
        "whether control tokens in the text are control tokens; default false",
    ),
    yes(
        "with_pieces",
        "whether each token's text is returned with its id; default false",
    ),
    yes(
        "return_token_strs",
        "whether the tokens' texts stand in a list of their own, as in vLLM",
    ),
    yes("model", ""),
];

/// Fields of `/detokenize`.
pub(crate) const DETOKENIZE: &[Field] = &[yes("tokens", ""), yes("model", "")];

/// Fields of `/apply-template`.
pub(crate) const APPLY_TEMPLATE: &[Field] = &[
    yes("messages", ""),
    yes("add_generation_prompt", "default true"),
    yes("chat_template_kwargs", ""),
    yes("model", ""),
];

/// The fields of both endpoints besides those of sampling, of shapes and of other servers.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes("n_predict", "default and -1: the rest of the context"),
    yes("stream", ""),
    yes("stop", "a string or up to 16"),
    yes("ignore_eos", ""),
    yes(
        "n_probs",
        "how many of the likeliest tokens to report with each, at most 20",
    ),
    yes(
        "return_tokens",
        "whether the token ids of the answer are reported",
    ),
    only("n_cmpl", &["1"], "send one request for each answer"),
    only("n_cache_reuse", &["0"], "prefixes are cached as a whole"),
    only("min_keep", &["0", "1"], NOT_IMPLEMENTED),
    only("lora", &["[]"], "there are no adapters"),
    refused("response_fields", "an answer has all of its fields"),
    refused(
        "sse_ping_interval",
        "a silent stream has a comment every 10 seconds",
    ),
    // Of sampling, with llama.cpp's values.
    yes("temperature", "default 0.8; 0 is greedy"),
    yes("top_k", "default 40; 0 or -1 is off"),
    yes("top_p", "default 0.95"),
    yes("min_p", "default 0.05"),
    yes(
        "repeat_last_n",
        "default 64; -1: all of the text; how far the penalties look back",
    ),
    // Of samplers that are off.
    label("xtc_threshold"),
    label("mirostat_tau"),
    label("mirostat_eta"),
    label("dynatemp_exponent"),
];

/// The prompt of `/completion`.
pub const PROMPT_FIELDS: &[Field] = &[yes(
    "prompt",
    "a text, in which control tokens are control tokens, or token ids",
)];

/// The texts of `/infill`.
pub const INFILL_FIELDS: &[Field] = &[
    yes("input_prefix", "the text before"),
    yes("input_suffix", "the text behind"),
    yes("prompt", "the beginning of the text between"),
    only("input_extra", &["[]"], "write it into `input_prefix`"),
];

/// A request to continue a text or to fill a gap in one.
#[derive(Clone, Debug, Deserialize)]
pub struct CompletionRequest {
    /// Model name.
    pub model: Option<String>,
    /// What to continue.
    pub prompt: Option<RawPrompt>,
    /// The text before a gap.
    #[serde(default)]
    pub input_prefix: String,
    /// The text behind it.
    #[serde(default)]
    pub input_suffix: String,
    n_predict: Option<TokenLimit>,
    /// Whether the answer is streamed.
    #[serde(default)]
    pub stream: bool,
    /// Strings that end the answer.
    pub stop: Option<Stop>,
    /// Whether generation continues past the end-of-text token.
    #[serde(default)]
    pub ignore_eos: bool,
    /// Alternatives to report with each token.
    #[serde(default)]
    pub n_probs: u32,
    /// Whether token ids are reported.
    #[serde(default)]
    pub return_tokens: bool,
}

/// A text or token ids.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of token ids")]
pub enum RawPrompt {
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

impl CompletionRequest {
    /// Most tokens to generate.
    pub(crate) fn max_tokens(&self) -> Option<u32> {
        self.n_predict.and_then(TokenLimit::at_most)
    }

    /// How many alternatives to report; `None` where no scores are asked for.
    ///
    /// # Errors
    /// Too many.
    pub(crate) fn n_logprobs(&self) -> Result<Option<u32>, ApiError> {
        let most = crate::openai::completion::MAX_LOGPROBS;
        match self.n_probs {
            0 => Ok(None),
            n if n > most => Err(ApiError::invalid("n_probs", format!("{n} is more than {most}"))),
            n => Ok(Some(n)),
        }
    }
}

/// The sampling values where a request is silent.
pub(crate) fn defaults() -> Value {
    json!({ "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_last_n": 64 })
}

/// Puts llama.cpp's values where a request is silent, and takes out a seed that asks for none.
pub(crate) fn with_defaults(mut body: Body) -> Body {
    let asks_for_none = |seed: &Value| *seed == -1 || *seed == u32::MAX;
    if body.get("seed").is_some_and(asks_for_none) {
        body.take("seed");
    }
    if let Value::Object(defaults) = defaults() {
        for (name, value) in defaults {
            body.set_default(&name, value);
        }
    }
    body
}

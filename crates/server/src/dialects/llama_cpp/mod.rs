//! llama.cpp's own API: request types of `/completion` and `/infill`, and the fields of its endpoints for words.
//!
//! Types and their checks only, as in [`openai`](crate::dialects::openai). Where the request is silent, the values are llama.cpp's.

pub(crate) mod generation_settings;
pub(crate) mod infill;
pub(crate) mod line_bounds;

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokenmill_backend::SamplingParams;

use crate::{
    ApiError,
    config::request_defaults::shortest,
    dialects::{
        llama_cpp::line_bounds::LineBounds,
        openai::{Stop, TokenLimit},
    },
    requests::{
        fields::{Body, Field, ignored, only, refused, yes},
        foreign::{IMAGES, OWN_TEMPLATE},
        raw_prompt::RawPrompt,
    },
    telemetry::stream_progress::ProgressFields,
};

/// Fields of `/tokenize`.
pub(crate) const TOKENIZE: &[Field] = &[
    yes("content", "the text; `prompt` is the same, as in vLLM"),
    yes("prompt", ""),
    yes(
        "messages",
        "in place of a text: a conversation, which the chat template renders",
    ),
    yes(
        "add_generation_prompt",
        "with `messages`, as the fields below; with a text they are refused; default true",
    ),
    yes("continue_final_message", "with `messages`"),
    yes("chat_template_kwargs", "with `messages`"),
    yes("tools", "with `messages`; as on `/v1/chat/completions`"),
    yes(
        "tool_choice",
        "with `tools`; `none` leaves them out of the prompt",
    ),
    yes(
        "reasoning_effort",
        "with `messages`; as on `/v1/chat/completions`",
    ),
    yes("enable_thinking", "with `messages`; as on `/v1/chat/completions`"),
    only("chat_template", &[], OWN_TEMPLATE),
    only("mm_processor_kwargs", &["{}"], IMAGES),
    yes(
        "add_special",
        "whether the tokens that begin and end a text are added; default false, and nothing else with `messages`; \
         `add_special_tokens` is the same, as in vLLM",
    ),
    yes("add_special_tokens", ""),
    yes(
        "parse_special",
        "whether control tokens in the text are control tokens; default true; with `messages` they are those of the chat template",
    ),
    yes(
        "with_pieces",
        "whether each token's text is returned with its id, or its bytes where they are a part of a character; default false",
    ),
    yes(
        "return_token_strs",
        "whether the tokens' texts stand in a list of their own, as in vLLM",
    ),
    yes("model", ""),
];

/// Fields of `/apply-template`.
pub(crate) const APPLY_TEMPLATE: &[Field] = &[
    yes("messages", ""),
    yes("add_generation_prompt", "default true"),
    yes("chat_template_kwargs", ""),
    yes("tools", "as on `/v1/chat/completions`"),
    yes(
        "tool_choice",
        "`none` leaves the tools out of the prompt; `allowed_tools` offers some of them",
    ),
    yes("reasoning_effort", "as on `/v1/chat/completions`"),
    yes("enable_thinking", "as on `/v1/chat/completions`"),
    only("chat_template", &[], OWN_TEMPLATE),
    yes("model", ""),
];

/// Fields of `/slots/{id}` with the actions `save` and `restore`.
pub(crate) const SLOT_FILE: &[Field] = &[
    yes("filename", "a name within the folder of `--session-dir`"),
    yes(
        "cache_salt",
        "with `restore`: the salt of the requests that reuse it",
    ),
    yes("model", ""),
];

/// The fields of both endpoints besides those of sampling, of shapes and of other servers.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes("n_predict", "default and -1: the rest of the context"),
    yes("max_tokens", "the same as `n_predict`"),
    yes("stream", ""),
    yes("stop", "a string or up to 16, together up to 4 KiB"),
    yes("ignore_eos", ""),
    yes(
        "n_probs",
        "how many of the likeliest tokens to report with each, at most 20",
    ),
    yes(
        "return_tokens",
        "whether the token ids of the answer are reported",
    ),
    yes(
        "return_progress",
        "a stream has `prompt_progress` (`total`, `cache`, `processed`, `time_ms`) at the start and after each step that computes \
         a part of the prompt",
    ),
    yes(
        "timings_per_token",
        "each piece of a stream has the `timings` so far",
    ),
    yes(
        "post_sampling_probs",
        "with `n_probs`, probabilities of the draw after all samplers, as `prob` and `top_probs`; those of removed tokens are 0",
    ),
    only("n_cmpl", &["1"], "send one request for each answer"),
    only("n_cache_reuse", &["0"], "prefixes are cached as a whole"),
    only("lora", &["[]"], "an adapter is named as the `model`"),
    yes(
        "response_fields",
        "only these fields of the answer, `a/b` for `b` within `a`; missing ones are left out",
    ),
    yes("n_indent", "ends the answer at a line that is indented by less"),
    yes(
        "t_max_predict_ms",
        "ends the answer at the first line break after this time; 0 and -1 are no limit",
    ),
    ignored(
        "t_max_prompt_ms",
        "as in llama.cpp; `--request-timeout` bounds a request",
    ),
    yes(
        "id_slot",
        "the slot that records the conversation for saving; with -1 or an unknown number the server chooses. Prefixes are found in the cache wherever they ran",
    ),
    refused(
        "sse_ping_interval",
        "a silent stream has a comment every 10 seconds",
    ),
    // Sampling fields, with llama.cpp's values.
    yes("temperature", "default 0.8; 0 is greedy"),
    yes("top_k", "default 40; 0 or -1 is off"),
    yes("top_p", "default 0.95"),
    yes("min_p", "default 0.05"),
    yes(
        "repeat_last_n",
        "default 64; -1: all of the text; how far the penalties look back",
    ),
];

/// The prompt of `/completion`.
pub const PROMPT_FIELDS: &[Field] = &[yes(
    "prompt",
    "a text, in which control tokens are control tokens, token ids, or a list of both in turn; a list of texts or of such lists is a \
     prompt each, and more than one are answered by a list, in a stream by `index`",
)];

/// The texts of `/infill`.
pub const INFILL_FIELDS: &[Field] = &[
    yes("input_prefix", "the text before"),
    yes("input_suffix", "the text after"),
    yes(
        "prompt",
        "the end of the text before; in llama.cpp too, whatever its page says",
    ),
    yes(
        "input_extra",
        "other files, as objects with `text` and `filename`, which go before the prompt; they get what the prompt and `n_predict` \
         (a quarter of the context, if that is silent) leave of the context, and the last of them are kept",
    ),
];

/// A request to continue a text or to fill a gap in one.
#[derive(Clone, Debug, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the API")]
pub struct CompletionRequest {
    /// Model name.
    pub model: Option<String>,
    /// The text to continue.
    pub prompt: Option<RawPrompt>,
    /// The text before a gap.
    #[serde(default)]
    pub input_prefix: String,
    /// The text after it.
    #[serde(default)]
    pub input_suffix: String,
    /// Texts of other files, for context.
    #[serde(default)]
    pub input_extra: Vec<ExtraText>,
    n_predict: Option<TokenLimit>,
    max_tokens: Option<TokenLimit>,
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
    /// The fields of the answer that are wanted; all, where none is named.
    #[serde(default)]
    pub response_fields: Vec<String>,
    /// How far each line is indented.
    #[serde(default)]
    pub n_indent: usize,
    t_max_predict_ms: Option<i64>,
    #[serde(default)]
    id_slot: Option<i64>,
    #[serde(default)]
    return_progress: bool,
    #[serde(default)]
    timings_per_token: bool,
    #[serde(default)]
    pub(crate) post_sampling_probs: bool,
}

/// Text of another file.
#[derive(Clone, Debug, Deserialize)]
pub struct ExtraText {
    /// The text.
    pub text: String,
    /// The file's name.
    #[serde(default)]
    pub filename: String,
}

impl CompletionRequest {
    /// The slot that it asks for.
    pub(crate) fn slot(&self) -> Option<usize> {
        self.id_slot.and_then(|id| usize::try_from(id).ok())
    }

    /// Returns the progress that the request's stream reports.
    pub(crate) fn progress(&self) -> ProgressFields {
        ProgressFields {
            return_progress: self.return_progress,
            timings_per_token: self.timings_per_token,
        }
    }

    /// Most tokens to generate.
    pub(crate) fn max_tokens(&self) -> Option<u32> {
        (self.n_predict.or(self.max_tokens)).and_then(TokenLimit::at_most)
    }

    /// How much of a context of `n_ctx` tokens is kept free for the answer.
    pub(crate) fn n_answer(&self, n_ctx: usize) -> usize {
        self.max_tokens().map_or(n_ctx / 4, |n| n as usize)
    }

    /// Where its lines end the answer.
    pub(crate) fn line_bounds(&self) -> LineBounds {
        let limit_ms = self.t_max_predict_ms.and_then(|ms| u64::try_from(ms).ok());
        let limit = limit_ms.filter(|&ms| ms > 0).map(Duration::from_millis);
        LineBounds::new(self.n_indent, limit)
    }

    /// The part of an answer that is wanted.
    pub(crate) fn wanted(&self, answer: Value) -> Value {
        if self.response_fields.is_empty() {
            return answer;
        }
        let at = |path: &String| {
            let found = path.split('/').try_fold(&answer, |value, name| value.get(name))?;
            Some((path.clone(), found.clone()))
        };
        Value::Object(self.response_fields.iter().filter_map(at).collect())
    }

    /// How many alternatives to report; `None` if no scores are requested.
    ///
    /// # Errors
    /// Too many.
    pub(crate) fn n_logprobs(&self) -> Result<Option<u32>, ApiError> {
        let most = crate::dialects::openai::completion::MAX_LOGPROBS;
        match self.n_probs {
            0 => Ok(None),
            n if n > most => Err(ApiError::invalid("n_probs", format!("{n} is more than {most}"))),
            n => Ok(Some(n)),
        }
    }
}

/// The sampling values where a request is silent.
pub(crate) fn defaults() -> Value {
    let params = SamplingParams::llama_cpp();
    json!({
        "temperature": shortest(params.temperature),
        "top_k": params.top_k,
        "top_p": shortest(params.top_p),
        "min_p": shortest(params.min_p),
        "repeat_last_n": params.penalty_last_n,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_fields_that_are_wanted() {
        let request: CompletionRequest = serde_json::from_value(
            json!({ "response_fields": ["content", "timings/prompt_n", "other", ""] }),
        )
        .expect("a request");
        let answer = json!({ "content": "a", "timings": { "prompt_n": 3, "x": 1 }, "tokens": [] });
        assert_eq!(
            request.wanted(answer),
            json!({ "content": "a", "timings/prompt_n": 3 })
        );
    }
}

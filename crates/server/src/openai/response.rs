//! `POST /v1/responses`: OpenAI's newer form of a chat request, without stored state.

use serde::Deserialize;

use super::{StreamOptions, chat::Message};
use crate::fields::{Field, label, refused, yes};

const NO_TOOLS: &str = "tool calls are not implemented yet";
const NO_STATE: &str = "nothing is stored; send the whole conversation in `input`";

/// The endpoint's own fields; of sampling it takes `temperature` and `top_p` officially, and the extensions.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes("input", "text, or a list of messages"),
    yes("instructions", "a system message before the input"),
    yes("max_output_tokens", "default: what is left of the context"),
    yes("stream", ""),
    yes("stream_options", ""),
    yes("top_logprobs", "at most 20"),
    yes(
        "include",
        "`message.output_text.logprobs`; anything else is refused",
    ),
    label("user"),
    label("metadata"),
    label("safety_identifier"),
    label("prompt_cache_key"),
    label("prompt_cache_retention"),
    label("service_tier"),
    label("parallel_tool_calls"),
    label("max_tool_calls"),
    refused(
        "text",
        "structured output is not implemented yet; only `{\"format\": {\"type\": \"text\"}}`",
    ),
    refused("tools", NO_TOOLS),
    refused("tool_choice", NO_TOOLS),
    refused("reasoning", "reasoning is not separated from the answer"),
    refused("background", "answers are not kept for later"),
    refused("conversation", NO_STATE),
    refused("previous_response_id", NO_STATE),
    refused("store", NO_STATE),
    refused("prompt", "stored prompts do not exist here"),
    refused("truncation", "a prompt that is too long is refused, never cut"),
];

/// A responses request.
#[derive(Clone, Debug, Deserialize)]
pub struct ResponseRequest {
    /// Model name.
    pub model: Option<String>,
    /// What to answer.
    pub input: Input,
    /// A system message.
    pub instructions: Option<String>,
    /// Most tokens to generate.
    pub max_output_tokens: Option<u32>,
    /// Whether the answer is streamed.
    #[serde(default)]
    pub stream: bool,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// Alternatives per token.
    pub top_logprobs: Option<u32>,
    /// Extra output.
    #[serde(default)]
    pub include: Vec<String>,
}

/// The input of a responses request.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of messages")]
pub enum Input {
    /// One user message.
    Text(String),
    /// A conversation.
    Messages(Vec<Message>),
}

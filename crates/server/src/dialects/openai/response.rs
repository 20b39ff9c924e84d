//! `POST /v1/responses`: OpenAI's newer form of a chat request, as agents send it.

use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use super::items::Input;
use super::{StreamOptions, TokenLimit, items::NO_STATE};
use crate::{
    ApiError,
    requests::{
        effort::{set_effort, set_verbosity},
        fields::{Field, label, only, refused, yes},
        tools::{Choice, IgnoredTools, Tools},
    },
};

/// The endpoint's own fields; of sampling it takes `temperature` and `top_p` officially, and the extensions.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "input",
        "text, or a list of messages, calls, results and reasoning, also those of earlier answers; calls of tools of other kinds and their results (`custom_tool_call`, \
         `local_shell_call`, `shell_call`, `apply_patch_call`, `tool_search_call`) are read as those of functions; items that only OpenAI's servers can read \
         (`web_search_call`, `file_search_call`, `image_generation_call`, `code_interpreter_call`, `compaction`) are left out, and the header \
         `x-tokenmill-ignored-items` names them; others are refused",
    ),
    yes("instructions", "a system message before the input"),
    yes("max_output_tokens", "default and -1: the rest of the context"),
    yes("stream", ""),
    yes("stream_options", ""),
    yes("top_logprobs", "at most 20"),
    yes(
        "include",
        "`message.output_text.logprobs`; `reasoning.encrypted_content`, which is always absent here; anything else is refused",
    ),
    label("user"),
    label("metadata"),
    label("safety_identifier"),
    label("prompt_cache_key"),
    label("client_metadata"),
    label("prompt_cache_options"),
    label("prompt_cache_retention"),
    label("service_tier"),
    yes(
        "parallel_tool_calls",
        "default true; with false an answer ends after its first call",
    ),
    label("max_tool_calls"),
    yes(
        "text",
        "`format`: `text`, `json_object`, or `json_schema` with a schema; every schema is enforced, with `strict` or without; `verbosity`: `low`, `medium` or `high`, a hint for templates \
         that read `verbosity`",
    ),
    yes(
        "tools",
        "functions; tools of other kinds are left out, and the header `x-tokenmill-ignored-tools` names their kinds",
    ),
    yes(
        "tool_choice",
        "`auto`, `none`, `required`, a function by its name, or `allowed_tools`; calls obey their schemas",
    ),
    yes(
        "reasoning",
        "`effort`, as `reasoning_effort` of `/v1/chat/completions`; `max_tokens`, as `thinking_budget` there; reasoning is given whole, so `summary` changes nothing",
    ),
    refused("background", "answers are made while the client waits"),
    refused("background_options", "answers are made while the client waits"),
    refused("conversation", NO_STATE),
    yes("previous_response_id", "an answer that is still stored"),
    yes(
        "store",
        "default true; the newest answers are kept, up to 32 MiB, for `previous_response_id` and `GET /v1/responses/{id}`, until `DELETE` of it",
    ),
    refused("prompt", "stored prompts do not exist here"),
    refused("access_programs", "there are no access programs"),
    refused("context_management", "send the conversation as it should be read"),
    refused("image", "only text goes in and comes out"),
    refused("moderation", "nothing is moderated"),
    only(
        "truncation",
        &["\"disabled\""],
        "a prompt that is too long is refused, never cut",
    ),
];

/// A responses request.
#[derive(Clone, Debug, Deserialize)]
pub struct ResponseRequest {
    /// Model name.
    pub model: Option<String>,
    /// The input to answer.
    pub input: Input,
    /// A system message.
    pub instructions: Option<String>,
    /// Most tokens to generate.
    pub max_output_tokens: Option<TokenLimit>,
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
    #[serde(default)]
    tools: Vec<Value>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    text: Option<TextSettings>,
    /// The answer that this one follows.
    pub(crate) previous_response_id: Option<String>,
    /// Whether the answer can be followed by another.
    pub(crate) store: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
struct Reasoning {
    effort: Option<String>,
    max_tokens: Option<u32>,
}

/// Settings of the text; its `format` is read with the shapes.
#[derive(Clone, Debug, Deserialize)]
struct TextSettings {
    format: Option<Value>,
    verbosity: Option<String>,
}

impl ResponseRequest {
    /// The settings of the text as an answer repeats them.
    pub(crate) fn text_settings(&self) -> Value {
        let (format, verbosity) = match &self.text {
            Some(text) => (text.format.clone(), text.verbosity.clone()),
            None => (None, None),
        };
        json!({
            "format": format.unwrap_or_else(|| json!({ "type": "text" })),
            "verbosity": verbosity.unwrap_or_else(|| "medium".to_owned()),
        })
    }

    /// The functions that the request offers, and the kinds of tools that are left out.
    ///
    /// # Errors
    /// Fails if a tool or the choice is invalid, and names it by its path.
    pub(crate) fn tools(&mut self) -> Result<(Tools, IgnoredTools), ApiError> {
        let choice = Choice::of_openai(self.tool_choice.as_ref())?;
        let mut functions = Vec::new();
        let mut ignored = IgnoredTools::default();
        for (index, tool) in std::mem::take(&mut self.tools).into_iter().enumerate() {
            let path = format!("tools[{index}]");
            match tool.get("type").and_then(Value::as_str) {
                Some("function") => functions.push((path, tool)),
                Some(kind) => ignored.add(kind, &tool),
                None => {
                    return Err(ApiError::invalid(
                        format!("{path}.type"),
                        "this field is required",
                    ));
                }
            }
        }
        let is_parallel = self.parallel_tool_calls.unwrap_or(true);
        let tools = Tools::new(functions, &choice, is_parallel, &ignored)?;
        Ok((tools, ignored))
    }

    /// Tokens that reasoning may take, if the request says so.
    pub(crate) fn thinking_budget(&self) -> Option<u32> {
        self.reasoning.as_ref()?.max_tokens
    }

    /// The variables for the chat template.
    ///
    /// # Errors
    /// A word that is unknown.
    pub(crate) fn variables(&self) -> Result<Map<String, Value>, ApiError> {
        let mut variables = Map::new();
        if let Some(effort) = self
            .reasoning
            .as_ref()
            .and_then(|reasoning| reasoning.effort.as_deref())
        {
            set_effort(&mut variables, "reasoning.effort", effort)?;
        }
        if let Some(verbosity) = self.text.as_ref().and_then(|text| text.verbosity.as_deref()) {
            set_verbosity(&mut variables, "text.verbosity", verbosity)?;
        }
        Ok(variables)
    }
}

//! `POST /v1/chat/completions`: a conversation in, the next message out.

use serde::Deserialize;
use serde_json::{Map, Value};

pub(crate) use super::message::{CHAT_WORDING, template_messages};
use super::{Stop, StreamOptions, TokenLimit, parts::TEXT_ONLY, template_variables::check_kwargs};
pub use super::{
    message::{Content, Message, TemplateMessage},
    parts::ContentPart,
};
pub use tokenmill::Turn;

use crate::{
    ApiError,
    requests::{
        effort::{set_effort, set_thinking, set_verbosity},
        fields::{Field, label, only, refused, yes},
        tools::Tools,
    },
    telemetry::stream_progress::ProgressFields,
};

pub(super) const OLD_CALLS: &str = "the older form of `tools` and `tool_calls`; use those";

/// The endpoint's own fields; those of sampling come from `sampling_fields`.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "messages",
        "roles `system`, `developer`, `user`, `assistant`, `tool`; content as text, text parts, or images as `image_url` with a `data:` URL, with `--media-path` also a `file://` URL; `tool_calls` and `reasoning_content` \
         of earlier answers",
    ),
    yes("max_completion_tokens", "default and -1: the rest of the context"),
    yes("max_tokens", "the older name of `max_completion_tokens`"),
    yes("n", ""),
    yes("stream", ""),
    yes("stream_options", "`include_usage`"),
    yes("logprobs", ""),
    yes("top_logprobs", "at most 20; needs `logprobs`"),
    yes("stop", "a string or up to 16, together up to 4 KiB"),
    yes(
        "chat_template_kwargs",
        "extension, as in vLLM; variables for the model's chat template",
    ),
    yes("add_generation_prompt", "extension, as in vLLM; default true"),
    yes(
        "continue_final_message",
        "extension, as in vLLM; the answer continues the last message, which is the assistant's",
    ),
    yes("ignore_eos", "extension, as in vLLM and llama.cpp"),
    yes(
        "return_token_ids",
        "extension, as in vLLM; `prompt_token_ids`, and `token_ids` of each choice; a stream has a chunk for each token then, also where \
         its text is held back",
    ),
    yes(
        "verbose",
        "extension, as in llama.cpp; puts the formatted prompt into the answer's `__verbose`",
    ),
    yes(
        "n_predict",
        "extension, as in llama.cpp; the same as `max_completion_tokens`",
    ),
    yes(
        "return_progress",
        "extension, as in llama.cpp; a stream has `prompt_progress` (`total`, `cache`, `processed`, `time_ms`) at the start and after each step that computes \
         a part of the prompt",
    ),
    yes(
        "timings_per_token",
        "extension, as in llama.cpp; each piece of a stream has the `timings` so far",
    ),
    yes(
        "post_sampling_probs",
        "extension, as in llama.cpp; with `logprobs`, probabilities of the draw after all samplers, as `prob` and `top_probs`; those of removed tokens are 0",
    ),
    label("user"),
    label("metadata"),
    label("safety_identifier"),
    label("prompt_cache_key"),
    label("prompt_cache_options"),
    label("prompt_cache_retention"),
    label("service_tier"),
    yes(
        "tools",
        "functions; calls are read in the format of the model's chat template",
    ),
    yes(
        "tool_choice",
        "`auto`, `none`, `required`, a function by its name, or `allowed_tools`; calls obey their schemas",
    ),
    refused(
        "prompt",
        "the conversation is in `messages`; `/v1/completions` continues a `prompt`",
    ),
    refused("functions", OLD_CALLS),
    refused("function_call", OLD_CALLS),
    yes(
        "parallel_tool_calls",
        "default true; with false an answer ends after its first call",
    ),
    yes(
        "response_format",
        "`text`, `json_object`, or `json_schema` with a schema; every schema is enforced, with `strict` or without",
    ),
    refused("modalities", TEXT_ONLY),
    refused("audio", TEXT_ONLY),
    refused("prediction", "predicted output is not implemented"),
    yes(
        "reasoning_effort",
        "`none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`; a hint for templates that read `reasoning_effort`, `enable_thinking` or `thinking`; `none` \
         switches thinking off",
    ),
    yes(
        "enable_thinking",
        "extension, as in vLLM and SGLang; switches thinking on or off in templates that can",
    ),
    yes(
        "thinking_budget",
        "extension, as in Qwen's API; most tokens of reasoning, after which the model's own end of it is written; -1 for no limit",
    ),
    yes(
        "thinking_token_budget",
        "extension, as in vLLM; the same as `thinking_budget`",
    ),
    yes(
        "thinking_budget_tokens",
        "extension, as in llama.cpp; the same as `thinking_budget`",
    ),
    yes("reasoning_budget", "extension; the same as `thinking_budget`"),
    yes(
        "verbosity",
        "`low`, `medium` or `high`; a hint for templates that read `verbosity`",
    ),
    only(
        "echo",
        &["false"],
        "the answer of `/v1/completions` can begin with the prompt",
    ),
    only("add_special_tokens", &["false"], "the chat template writes them"),
    yes(
        "thinking",
        "extension, as in DeepSeek's and GLM's APIs; `{\"type\": \"enabled\"}` or `disabled`, the same as `enable_thinking`",
    ),
    refused(
        "store",
        "chats are not stored; `/v1/responses` stores its answers",
    ),
    refused("moderation", "nothing is moderated"),
    refused("web_search_options", "there is no web search"),
];

/// Most alternatives per token.
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// Returns how many alternatives to report per token; `None` without `logprobs`.
///
/// # Errors
/// Too many, or requested without `logprobs`.
pub(crate) fn n_logprobs(logprobs: Option<bool>, top_logprobs: Option<u32>) -> Result<Option<u32>, ApiError> {
    match (logprobs.unwrap_or(false), top_logprobs) {
        (_, Some(n)) if n > MAX_TOP_LOGPROBS => Err(ApiError::invalid(
            "top_logprobs",
            format!("{n} is more than {MAX_TOP_LOGPROBS}"),
        )),
        (false, Some(n)) if n > 0 => Err(ApiError::invalid("top_logprobs", "needs `logprobs: true`")),
        (false, _) => Ok(None),
        (true, n) => Ok(Some(n.unwrap_or(0))),
    }
}

/// A chat request.
#[derive(Clone, Debug, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the API")]
pub struct ChatRequest {
    /// Model name.
    pub model: Option<String>,
    /// The conversation.
    pub messages: Vec<Message>,
    max_completion_tokens: Option<TokenLimit>,
    max_tokens: Option<TokenLimit>,
    n_predict: Option<TokenLimit>,
    /// Choices.
    pub n: Option<u32>,
    /// Whether the answer is streamed.
    #[serde(default)]
    pub stream: bool,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    /// Strings that end the answer.
    pub stop: Option<Stop>,
    /// Variables for the chat template.
    #[serde(default)]
    pub chat_template_kwargs: Map<String, Value>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    tools: Vec<Value>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning_effort: Option<String>,
    enable_thinking: Option<bool>,
    thinking: Option<Thinking>,
    verbosity: Option<String>,
    thinking_budget: Option<i32>,
    thinking_token_budget: Option<i32>,
    thinking_budget_tokens: Option<i32>,
    reasoning_budget: Option<i32>,
    /// Whether generation continues past the end-of-text token.
    #[serde(default)]
    pub ignore_eos: bool,
    /// Whether the answer includes token ids.
    #[serde(default)]
    pub return_token_ids: bool,
    /// Whether the answer includes the prompt.
    #[serde(default)]
    pub verbose: bool,
    #[serde(default)]
    return_progress: bool,
    #[serde(default)]
    timings_per_token: bool,
    #[serde(default)]
    pub(crate) post_sampling_probs: bool,
}

impl ChatRequest {
    /// Returns how the prompt ends.
    ///
    /// # Errors
    /// Fields that contradict each other or the last message.
    pub fn turn(&self) -> Result<Turn, ApiError> {
        turn_of(
            &self.messages,
            self.add_generation_prompt,
            self.continue_final_message,
        )
    }

    /// The tools that the request offers.
    ///
    /// # Errors
    /// Fails on invalid tools or an invalid choice, and names the path.
    pub(crate) fn tools(&mut self) -> Result<Tools, ApiError> {
        let tools = std::mem::take(&mut self.tools);
        let is_parallel = self.parallel_tool_calls.unwrap_or(true);
        Tools::of_functions(tools, self.tool_choice.as_ref(), is_parallel)
    }

    /// The variables for the chat template.
    ///
    /// # Errors
    /// Returns the errors of [`check_kwargs`], and fails on an unknown word.
    pub(crate) fn variables(&mut self) -> Result<Map<String, Value>, ApiError> {
        let mut kwargs = check_kwargs(std::mem::take(&mut self.chat_template_kwargs))?;
        let thinking = match self.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
            None | Some("auto" | "adaptive") => None,
            Some("enabled") => Some(true),
            Some("disabled") => Some(false),
            Some(_) => {
                return Err(ApiError::invalid(
                    "thinking.type",
                    "expected `enabled`, `disabled` or `auto`",
                ));
            }
        };
        if let Some(thinks) = self.enable_thinking.or(thinking) {
            set_thinking(&mut kwargs, thinks);
        }
        if let Some(effort) = &self.reasoning_effort {
            set_effort(&mut kwargs, "reasoning_effort", effort)?;
        }
        if let Some(verbosity) = &self.verbosity {
            set_verbosity(&mut kwargs, "verbosity", verbosity)?;
        }
        Ok(kwargs)
    }

    /// Returns the reasoning budget in tokens, if the request sets it.
    ///
    /// # Errors
    /// Fails on two names for it with different values, and on an invalid number.
    pub(crate) fn thinking_budget(&self) -> Result<Option<u32>, ApiError> {
        let mut asked = [
            ("thinking_budget", self.thinking_budget),
            ("thinking_token_budget", self.thinking_token_budget),
            ("thinking_budget_tokens", self.thinking_budget_tokens),
            ("reasoning_budget", self.reasoning_budget),
        ]
        .into_iter()
        .filter_map(|(name, n_tokens)| Some((name, n_tokens?)));
        let Some((name, n_tokens)) = asked.next() else {
            return Ok(None);
        };
        if let Some((other, _)) = asked.find(|(_, other)| *other != n_tokens) {
            return Err(ApiError::invalid(
                other,
                format!("contradicts `{name}`; give one budget"),
            ));
        }
        if n_tokens == -1 {
            return Ok(None);
        }
        let budget = u32::try_from(n_tokens);
        budget
            .map(Some)
            .map_err(|_| ApiError::invalid(name, format!("{n_tokens} is not -1 or a count of tokens")))
    }

    /// Returns the most tokens to generate, if the request sets it.
    ///
    /// # Errors
    /// Both names with different values.
    pub fn max_tokens(&self) -> Result<Option<u32>, ApiError> {
        match (self.max_completion_tokens, self.max_tokens) {
            (Some(new), Some(old)) if new != old => Err(ApiError::invalid(
                "max_tokens",
                "contradicts `max_completion_tokens`",
            )),
            (new, old) => Ok(new.or(old).or(self.n_predict).and_then(TokenLimit::at_most)),
        }
    }

    /// Returns the progress that the request's stream reports.
    pub(crate) fn progress(&self) -> ProgressFields {
        ProgressFields {
            return_progress: self.return_progress,
            timings_per_token: self.timings_per_token,
        }
    }

    /// Returns how many alternatives to report per token; `None` without `logprobs`.
    ///
    /// # Errors
    /// Too many, or requested without `logprobs`.
    pub fn n_logprobs(&self) -> Result<Option<u32>, ApiError> {
        n_logprobs(self.logprobs, self.top_logprobs)
    }
}

/// Says whether the model is to reason, in other APIs' fields.
#[derive(Clone, Debug, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
}

/// Returns how the prompt of a conversation ends, by vLLM's two switches.
///
/// # Errors
/// Switches that contradict each other, or nothing to continue.
pub(crate) fn turn_of(
    messages: &[Message],
    add_generation_prompt: Option<bool>,
    continue_final_message: bool,
) -> Result<Turn, ApiError> {
    let refused = |reason| Err(ApiError::invalid("continue_final_message", reason));
    match (continue_final_message, add_generation_prompt) {
        (false, Some(false)) => Ok(Turn::Closed),
        (false, _) => Ok(Turn::Open),
        (true, Some(true)) => refused("contradicts `add_generation_prompt: true`"),
        (true, _) if messages.last().is_none_or(|last| last.role != "assistant") => {
            refused("the last message is not the assistant's")
        }
        (true, _) => Ok(Turn::Unfinished),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_variables_of_a_template_are_not_the_clients() {
        let kwargs = |name: &str| Map::from_iter([(name.to_owned(), Value::Null)]);
        assert!(check_kwargs(kwargs("enable_thinking")).is_ok());
        let refused = check_kwargs(kwargs("messages")).expect_err("it is reserved");
        assert_eq!(refused.param(), Some("chat_template_kwargs.messages"));
    }

    #[test]
    fn the_switches_say_how_a_prompt_ends() {
        let turn = |role: &str, switches: &str| {
            let body = format!(r#"{{"messages":[{{"role":"{role}","content":"a"}}]{switches}}}"#);
            let request: ChatRequest = serde_json::from_str(&body).expect("a request");
            request.turn().map_err(|error| error.param().map(str::to_owned))
        };
        let refused = || Err(Some("continue_final_message".to_owned()));
        assert_eq!(turn("assistant", ""), Ok(Turn::Open));
        assert_eq!(
            turn("user", r#","add_generation_prompt":false"#),
            Ok(Turn::Closed)
        );
        assert_eq!(
            turn("assistant", r#","continue_final_message":true"#),
            Ok(Turn::Unfinished)
        );
        assert_eq!(
            turn(
                "assistant",
                r#","continue_final_message":true,"add_generation_prompt":false"#
            ),
            Ok(Turn::Unfinished)
        );
        assert_eq!(turn("user", r#","continue_final_message":true"#), refused());
        assert_eq!(
            turn(
                "assistant",
                r#","continue_final_message":true,"add_generation_prompt":true"#
            ),
            refused()
        );
    }

    #[test]
    fn log_probabilities_need_their_switch() {
        let n_logprobs = |fields: &str| {
            let request: ChatRequest =
                serde_json::from_str(&format!(r#"{{"messages":[],{fields}}}"#)).expect("a request");
            request
                .n_logprobs()
                .map_err(|error| error.param().map(str::to_owned))
        };
        assert_eq!(n_logprobs(r#""logprobs":true"#), Ok(Some(0)));
        assert_eq!(n_logprobs(r#""logprobs":true,"top_logprobs":5"#), Ok(Some(5)));
        assert_eq!(n_logprobs(r#""logprobs":false,"top_logprobs":0"#), Ok(None));
        assert_eq!(
            n_logprobs(r#""top_logprobs":5"#),
            Err(Some("top_logprobs".to_owned()))
        );
        assert_eq!(
            n_logprobs(r#""logprobs":true,"top_logprobs":21"#),
            Err(Some("top_logprobs".to_owned()))
        );
    }
}

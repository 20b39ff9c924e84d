//! `POST /v1/chat/completions`: a conversation in, the next message out.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use super::parts::ContentPart;
use super::{
    Stop, StreamOptions, TokenLimit,
    parts::{TEXT_ONLY, join_parts},
    template_variables::check_kwargs,
};
pub use tokenmill::Turn;

use crate::{
    ApiError,
    effort::{set_effort, set_thinking, set_verbosity},
    fields::{Field, label, only, refuse_others, refused, yes},
    tools::{Tools, earlier_calls},
};

const OLD_CALLS: &str = "the older form of `tools` and `tool_calls`; use those";

/// The endpoint's own fields; those of sampling come from [`SAMPLING_FIELDS`](crate::sampling::SAMPLING_FIELDS).
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
        "`none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`; a wish, told to templates that read `reasoning_effort`, `enable_thinking` or `thinking`; `none` \
         switches thinking off",
    ),
    yes(
        "enable_thinking",
        "extension, as in vLLM and SGLang; switches thinking on or off in templates that can",
    ),
    yes(
        "thinking_budget",
        "extension, as in Qwen's API; tokens that reasoning may take, then the model's own end of it is written; -1 for any number",
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
        "`low`, `medium` or `high`; a wish, told to templates that read `verbosity`",
    ),
    only(
        "echo",
        &["false"],
        "the answer of `/v1/completions` can begin with the prompt",
    ),
    only("add_special_tokens", &["false"], "the chat template writes them"),
    refused(
        "store",
        "chats are not stored; `/v1/responses` stores its answers",
    ),
    refused("moderation", "nothing is moderated"),
    refused("web_search_options", "there is no web search"),
];

/// Most alternatives per token.
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// How many alternatives to report per token; `None` without `logprobs`.
///
/// # Errors
/// Too many, or asked for without `logprobs`.
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
    verbosity: Option<String>,
    thinking_budget: Option<i32>,
    thinking_token_budget: Option<i32>,
    thinking_budget_tokens: Option<i32>,
    reasoning_budget: Option<i32>,
    /// Whether generation continues past the end-of-text token.
    #[serde(default)]
    pub ignore_eos: bool,
    /// Whether the ids of tokens are told.
    #[serde(default)]
    pub return_token_ids: bool,
}

impl ChatRequest {
    /// How the prompt ends.
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
    /// What is wrong with them or with the choice, by path.
    pub(crate) fn tools(&mut self) -> Result<Tools, ApiError> {
        let tools = std::mem::take(&mut self.tools);
        let is_parallel = self.parallel_tool_calls.unwrap_or(true);
        Tools::of_functions(tools, self.tool_choice.as_ref(), is_parallel)
    }

    /// The variables for the chat template.
    ///
    /// # Errors
    /// As [`check_kwargs`], and a word that is unknown.
    pub(crate) fn variables(&mut self) -> Result<Map<String, Value>, ApiError> {
        let mut kwargs = check_kwargs(std::mem::take(&mut self.chat_template_kwargs))?;
        if let Some(thinks) = self.enable_thinking {
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

    /// Tokens that reasoning may take, if the request says so.
    ///
    /// # Errors
    /// Two names for it with different values, and a number that is none of tokens.
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

    /// Most tokens to generate, if the request says so.
    ///
    /// # Errors
    /// Both names with different values.
    pub fn max_tokens(&self) -> Result<Option<u32>, ApiError> {
        match (self.max_completion_tokens, self.max_tokens) {
            (Some(new), Some(old)) if new != old => Err(ApiError::invalid(
                "max_tokens",
                "contradicts `max_completion_tokens`",
            )),
            (new, old) => Ok(new.or(old).and_then(TokenLimit::at_most)),
        }
    }

    /// How many alternatives to report per token; `None` without `logprobs`.
    ///
    /// # Errors
    /// Too many, or asked for without `logprobs`.
    pub fn n_logprobs(&self) -> Result<Option<u32>, ApiError> {
        n_logprobs(self.logprobs, self.top_logprobs)
    }
}

/// How the prompt of a conversation ends, by vLLM's two switches.
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

/// One message of a conversation.
#[derive(Clone, Debug, Deserialize)]
pub struct Message {
    role: String,
    content: Option<Content>,
    name: Option<String>,
    refusal: Option<Value>,
    tool_calls: Option<Vec<Value>>,
    tool_call_id: Option<String>,
    function_call: Option<Value>,
    audio: Option<Value>,
    reasoning_content: Option<String>,
    /// The same in other servers' words.
    reasoning: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// A message's content.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of content parts")]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Parts: text and images.
    Parts(Vec<ContentPart>),
}

/// How an endpoint writes conversations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wording {
    /// The field with the messages.
    pub(crate) field: &'static str,
    /// Types of parts that are text.
    pub(crate) text_kinds: &'static [&'static str],
    /// The type of a part that is an image.
    pub(crate) image_kind: &'static str,
    /// Fields of a message that only describe it.
    pub(crate) labels: &'static [&'static str],
}

/// How this endpoint does.
pub(crate) const CHAT_WORDING: Wording = Wording {
    field: "messages",
    text_kinds: &["text"],
    image_kind: "image_url",
    labels: &[],
};

/// A message as the chat template sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text.
    pub content: String,
    /// Text and images in their order, where there are images.
    #[serde(skip)]
    pub parts: Vec<Value>,
    /// The author's name, if the request gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the assistant thought before it answered, for templates that write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tools that the assistant called, in OpenAI's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Value>,
    /// The call whose result this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl TemplateMessage {
    /// Images in it.
    pub(crate) fn n_images(&self) -> usize {
        let is_image = |part: &&Value| part["type"] == "image_url";
        self.parts.iter().filter(is_image).count()
    }
}

/// Checks a conversation and brings it into the form that chat templates expect.
///
/// # Errors
/// An empty conversation, an unknown role, a part that is not text or an unknown field, by path.
pub(crate) fn template_messages(
    messages: Vec<Message>,
    wording: &Wording,
) -> Result<Vec<TemplateMessage>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid(
            wording.field,
            "a conversation needs at least one message",
        ));
    }
    messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| template_message(&format!("{}[{index}]", wording.field), message, wording))
        .collect()
}

/// Checks one message; `path` is where it stands.
///
/// # Errors
/// As [`template_messages`].
pub(crate) fn template_message(
    path: &str,
    message: Message,
    wording: &Wording,
) -> Result<TemplateMessage, ApiError> {
    let at = |field: &str| format!("{path}.{field}");
    let unsupported = |field, reason| {
        Err(ApiError::UnsupportedField {
            param: at(field),
            reason,
        })
    };
    let calls = message.tool_calls.filter(|calls| !calls.is_empty());
    if calls.is_some() && message.role != "assistant" {
        return Err(ApiError::invalid(
            at("tool_calls"),
            "only the assistant calls tools",
        ));
    }
    let tool_calls = calls
        .map(|calls| earlier_calls(&at("tool_calls"), calls))
        .transpose()?;
    if message.function_call.is_some_and(|call| !call.is_null()) {
        return unsupported("function_call", OLD_CALLS);
    }
    if message.audio.is_some_and(|audio| !audio.is_null()) {
        return unsupported("audio", TEXT_ONLY);
    }
    if message.refusal.is_some_and(|refusal| !refusal.is_null()) {
        return unsupported("refusal", "write the refusal as the message's content");
    }
    let role = match message.role.as_str() {
        "tool" if message.tool_call_id.as_ref().is_none_or(String::is_empty) => {
            return Err(ApiError::invalid(
                at("tool_call_id"),
                "a result names the call that it is of",
            ));
        }
        "system" | "user" | "assistant" | "tool" => message.role,
        // The newer name of the same thing; templates know only the older.
        "developer" => "system".to_owned(),
        "function" => return unsupported("role", OLD_CALLS),
        _ => {
            let reason = format!(
                "`{}` is not a role; expected system, developer, user, assistant or tool",
                message.role
            );
            return Err(ApiError::invalid(at("role"), reason));
        }
    };
    refuse_others(path, &message.others, wording.labels)?;
    let (content, parts) = match message.content {
        Some(Content::Text(text)) => (text, Vec::new()),
        Some(Content::Parts(parts)) => join_parts(&at("content"), parts, wording)?,
        None if tool_calls.is_some() => (String::new(), Vec::new()),
        None => return Err(ApiError::invalid(at("content"), "this field is required")),
    };
    Ok(TemplateMessage {
        role,
        content,
        parts,
        name: message.name,
        reasoning_content: message.reasoning_content.or(message.reasoning),
        tool_calls,
        tool_call_id: message.tool_call_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(messages: &str, expected: Result<&[(&str, &str)], &str>) {
        let messages: Vec<Message> = serde_json::from_str(messages).expect("messages of the right types");
        match (template_messages(messages, &CHAT_WORDING), expected) {
            (Ok(found), Ok(wanted)) => {
                let found: Vec<_> = found
                    .iter()
                    .map(|m| (m.role.as_str(), m.content.as_str()))
                    .collect();
                assert_eq!(found, wanted);
            }
            (Err(error), Err(param)) => assert_eq!(error.param(), Some(param), "{error}"),
            (found, wanted) => panic!("{found:?}, expected {wanted:?}"),
        }
    }

    #[test]
    fn messages_reach_the_template_as_role_and_text() {
        check(
            r#"[{"role":"developer","content":"be brief"},
                {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                {"role":"assistant","content":"c","refusal":null,"tool_calls":[],"annotations":[]}]"#,
            Ok(&[("system", "be brief"), ("user", "ab"), ("assistant", "c")]),
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_path() {
        check("[]", Err("messages"));
        check(r#"[{"role":"robot","content":"a"}]"#, Err("messages[0].role"));
        check(r#"[{"role":"user"}]"#, Err("messages[0].content"));
        check(
            r#"[{"role":"tool","content":"a"}]"#,
            Err("messages[0].tool_call_id"),
        );
        check(r#"[{"role":"function","content":"a"}]"#, Err("messages[0].role"));
        check(
            r#"[{"role":"user","content":[{"type":"image_url"}]}]"#,
            Err("messages[0].content[0].image_url"),
        );
        check(
            r#"[{"role":"assistant","tool_calls":[{}]}]"#,
            Err("messages[0].tool_calls[0].function.name"),
        );
        check(
            r#"[{"role":"user","content":"a","prefix":true}]"#,
            Err("messages[0].prefix"),
        );
        check(
            r#"[{"role":"user","content":[{"type":"text","text":"a","weight":2}]}]"#,
            Err("messages[0].content[0].weight"),
        );
    }

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

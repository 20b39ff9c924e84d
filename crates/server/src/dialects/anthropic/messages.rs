//! `POST /v1/messages`: a conversation in, the next message out, in Anthropic's words.

use serde::Deserialize;
use serde_json::{Map, Value};

pub use super::blocks::{Block, Content, Message, template_messages};
use super::tool_kinds::{RunBy, run_by};
use crate::{
    ApiError,
    dialects::openai::chat::Turn,
    requests::{
        effort::{set_effort, set_thinking},
        fields::{Field, label, refuse_others, refused, yes},
        tools::{Choice, IgnoredTools, Tools},
    },
};

/// The endpoint's fields. `top_k`, `top_p` and `temperature` are read with the other sampling fields.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "messages",
        "roles `user` and `assistant`; content as text or blocks `text`, `image` (`base64`, or a `url` with `data:` or `file://`), `document` (text), `thinking`, `tool_use` and `tool_result`; \
         `server_tool_use` and its results of an earlier answer are read as calls and results, and `redacted_thinking` is left out; the answer continues a last \
         message of the assistant",
    ),
    yes("max_tokens", "required, except by `count_tokens`"),
    yes("system", "text or text blocks"),
    yes("stop_sequences", "up to 16, together up to 4 KiB"),
    yes("stream", ""),
    yes("temperature", "default 1"),
    yes("top_k", ""),
    yes("top_p", ""),
    label("metadata"),
    label("cache_control"),
    label("service_tier"),
    yes(
        "tools",
        "tools with an `input_schema`; kinds that Anthropic's servers run (`web_search`, `web_fetch`, `code_execution`, `tool_search_tool_regex`, \
         `tool_search_tool_bm25`, `mcp_toolset`, `advisor`) are left out, and the header `x-tokenmill-ignored-tools` names them; kinds that the client runs \
         by Anthropic's descriptions (`bash`, `text_editor`, `computer`, `memory`), and unknown ones, are refused",
    ),
    yes(
        "tool_choice",
        "`auto`, `none`, `any` and `tool` with a `name`, with `disable_parallel_tool_use`; calls obey their schemas",
    ),
    yes(
        "thinking",
        "`enabled`, `adaptive` or `disabled`, for models whose template can switch it; after `budget_tokens` the model's own end of reasoning is written",
    ),
    yes(
        "output_config",
        "`format`: `json_schema` with a `schema`, which is enforced; `effort`: `low`, `medium`, `high`, `xhigh` or `max`, as `reasoning_effort` of \
         `/v1/chat/completions`",
    ),
    yes("output_format", "the older name of `output_config.format`"),
    refused("container", "there is no code execution"),
    yes(
        "context_management",
        "edits that leave the conversation as it is: `clear_thinking_20251015` that keeps `all`; any other is refused: send the conversation as it should be read",
    ),
    refused("mcp_servers", "tools are called by the client"),
    refused(
        "diagnostics",
        "the server's log says why no more came from the cache",
    ),
    refused("speed", "there is one speed"),
    refused("inference_geo", "the model runs where this server runs"),
];

/// A messages request.
#[derive(Clone, Debug, Deserialize)]
pub struct MessagesRequest {
    /// Model name.
    pub model: Option<String>,
    /// The conversation.
    pub messages: Vec<Message>,
    max_tokens: Option<u32>,
    /// The system message.
    pub system: Option<Content>,
    #[serde(default)]
    tools: Vec<Value>,
    tool_choice: Option<ToolChoice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    context_management: Option<ContextManagement>,
    /// Strings that end the answer.
    #[serde(default)]
    pub stop_sequences: Vec<String>,
    /// Whether the answer is streamed.
    #[serde(default)]
    pub stream: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "expected an object with the `type` `auto`, `any`, `none`, or `tool` with a name")]
struct ToolChoice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    #[serde(default)]
    disable_parallel_tool_use: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<u32>,
}

/// Settings of the answer; its `format` is read with the shapes.
#[derive(Clone, Debug, Deserialize)]
struct OutputConfig {
    effort: Option<String>,
}

/// The edits of the conversation that the server is asked to make.
#[derive(Clone, Debug, Deserialize)]
struct ContextManagement {
    #[serde(default)]
    edits: Vec<ContextEdit>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize)]
struct ContextEdit {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    keep: Value,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl ContextManagement {
    /// Checks that all edits leave the conversation as it is.
    ///
    /// # Errors
    /// The first that would change it, by path.
    fn check(&self) -> Result<(), ApiError> {
        let path = "context_management";
        refuse_others(path, &self.others, &[])?;
        for (index, edit) in self.edits.iter().enumerate() {
            let path = format!("{path}.edits[{index}]");
            let refused = |field: &str| {
                Err(ApiError::UnsupportedField {
                    param: format!("{path}.{field}"),
                    reason: "nothing is taken out of a conversation; send it as it should be read",
                })
            };
            if edit.kind != "clear_thinking_20251015" {
                return refused("type");
            }
            let keeps_all = edit.keep == "all" || edit.keep["type"] == "all";
            if !keeps_all {
                return refused("keep");
            }
            refuse_others(&path, &edit.others, &[])?;
        }
        Ok(())
    }
}

impl MessagesRequest {
    /// Tokens that thoughts may take.
    ///
    /// # Errors
    /// A budget for thoughts that are not requested.
    pub(crate) fn thinking_budget(&self) -> Result<Option<u32>, ApiError> {
        match &self.thinking {
            Some(thinking) if thinking.budget_tokens.is_some() && thinking.kind == "disabled" => {
                Err(ApiError::invalid(
                    "thinking.budget_tokens",
                    "contradicts `thinking.type`, which is `disabled`",
                ))
            }
            Some(thinking) => Ok(thinking.budget_tokens),
            None => Ok(None),
        }
    }

    /// The tools that the request offers, and the kinds of those that are left out.
    ///
    /// # Errors
    /// Fails if a tool or the choice is invalid, and names it by its path.
    pub(crate) fn tools(&mut self) -> Result<(Tools, IgnoredTools), ApiError> {
        let choice = match self
            .tool_choice
            .as_ref()
            .map(|choice| (choice.kind.as_str(), &choice.name))
        {
            None | Some(("auto", _)) => Choice::Auto,
            Some(("none", _)) => Choice::None,
            Some(("any", _)) => Choice::Required,
            Some(("tool", Some(name))) => Choice::Named(name.clone()),
            Some(_) => {
                let reason = "expected the type `auto`, `any`, `none`, or `tool` with a name";
                return Err(ApiError::invalid("tool_choice", reason));
            }
        };
        let mut tools = Vec::new();
        let mut ignored = IgnoredTools::default();
        for (index, tool) in std::mem::take(&mut self.tools).into_iter().enumerate() {
            let path = format!("tools[{index}]");
            match tool.get("type") {
                None | Some(Value::Null) => tools.push((path, tool)),
                Some(Value::String(kind)) => match run_by(kind, &path)? {
                    RunBy::Description => tools.push((path, tool)),
                    RunBy::OtherServers => ignored.add(kind, &tool),
                },
                Some(_) => return Err(ApiError::invalid(format!("{path}.type"), "expected a string")),
            }
        }
        let is_parallel = !(self.tool_choice.as_ref()).is_some_and(|choice| choice.disable_parallel_tool_use);
        Ok((Tools::new(tools, &choice, is_parallel, &ignored)?, ignored))
    }

    /// The variables for the chat template.
    ///
    /// # Errors
    /// An unknown kind of thinking or of effort, and edits that would change the conversation.
    pub(crate) fn variables(&self) -> Result<Map<String, Value>, ApiError> {
        let mut variables = Map::new();
        match self.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
            None | Some("adaptive") => {}
            Some("enabled") => set_thinking(&mut variables, true),
            Some("disabled") => set_thinking(&mut variables, false),
            Some(_) => {
                let reason = "expected `enabled`, `adaptive` or `disabled`";
                return Err(ApiError::invalid("thinking.type", reason));
            }
        }
        if let Some(effort) = self
            .output_config
            .as_ref()
            .and_then(|config| config.effort.as_deref())
        {
            set_effort(&mut variables, "output_config.effort", effort)?;
        }
        if let Some(management) = &self.context_management {
            management.check()?;
        }
        Ok(variables)
    }

    /// How the prompt ends: if the last message is the assistant's, the answer begins with it.
    ///
    /// # Errors
    /// Such a message with space at its end, which models continue badly; the official API refuses it too.
    pub fn turn(&self) -> Result<Turn, ApiError> {
        let Some(last) = self.messages.last().filter(|last| last.is_of_assistant()) else {
            return Ok(Turn::Open);
        };
        if last
            .text_end()
            .is_some_and(|text| text.ends_with(char::is_whitespace))
        {
            return Err(ApiError::invalid(
                format!("messages[{}].content", self.messages.len() - 1),
                "the beginning of an answer cannot end with space",
            ));
        }
        Ok(Turn::Unfinished)
    }

    /// Most tokens to generate.
    ///
    /// # Errors
    /// The field is missing or 0.
    pub fn max_tokens(&self) -> Result<u32, ApiError> {
        match self.max_tokens {
            None => Err(ApiError::invalid("max_tokens", "this field is required")),
            Some(0) => Err(ApiError::invalid("max_tokens", "at least 1")),
            Some(n) => Ok(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(more: &Value) -> MessagesRequest {
        let mut body = json!({ "messages": [{ "role": "user", "content": "a" }] });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(body).expect("a request of the right types")
    }

    #[test]
    fn effort_reaches_the_template_and_does_not_switch_on_what_is_off() {
        let variables = |more: Value| request(&more).variables().expect("variables");
        let medium = variables(json!({ "output_config": { "effort": "medium" } }));
        assert_eq!(
            (&medium["reasoning_effort"], &medium["enable_thinking"]),
            (&json!("medium"), &json!(true))
        );
        let off =
            variables(json!({ "output_config": { "effort": "max" }, "thinking": { "type": "disabled" } }));
        assert_eq!(
            (&off["reasoning_effort"], &off["enable_thinking"]),
            (&json!("high"), &json!(false))
        );
        let wrong = request(&json!({ "output_config": { "effort": "zzz" } }))
            .variables()
            .unwrap_err();
        assert_eq!(wrong.param(), Some("output_config.effort"));
    }

    #[test]
    fn edits_that_keep_everything_pass() {
        let check = |management: Value| {
            let found = request(&json!({ "context_management": management })).variables();
            found
                .map_err(|error| error.param().unwrap_or_default().to_owned())
                .map(|_| ())
        };
        let clear = |keep: Value| json!({ "edits": [{ "type": "clear_thinking_20251015", "keep": keep }] });
        for management in [
            json!({}),
            json!({ "edits": [] }),
            clear(json!("all")),
            clear(json!({ "type": "all" })),
        ] {
            assert_eq!(check(management.clone()), Ok(()), "{management}");
        }
        for (management, param) in [
            (
                clear(json!({ "type": "thinking_turns", "value": 1 })),
                "context_management.edits[0].keep",
            ),
            (
                json!({ "edits": [{ "type": "clear_thinking_20251015" }] }),
                "context_management.edits[0].keep",
            ),
            (
                json!({ "edits": [{ "type": "clear_tool_uses_20250919" }] }),
                "context_management.edits[0].type",
            ),
            (json!({ "trim": 1 }), "context_management.trim"),
        ] {
            assert_eq!(check(management), Err(param.to_owned()));
        }
    }
}

//! [`ServedModel`]: the one model a server answers for, and its names.
//!
//! Separate from the model because names, refusals in the client's words and fresh seeds are matters of the wire.
//! Invariant: whatever reaches the engine was checked here, and a refusal names the field at fault.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value};
use tokenmill::{Conversation, Error, Model, Prompt, TextParams, TextStream};
use tokenmill_sched::{Engine, EngineError};
use tokenmill_text::{Tokenizer, template::ChatTemplate};

use crate::{
    ApiError,
    openai::chat::{TemplateMessage, Turn},
    tools::Tools,
};

/// What a server needs of a loaded model.
#[derive(Debug)]
pub struct ServedModel {
    names: Vec<String>,
    model: Model,
    created_s: u64,
    n_requests: AtomicU64,
}

impl ServedModel {
    /// Puts a model together. The first of `names` is the one that responses carry.
    ///
    /// # Panics
    /// When `names` is empty.
    pub fn new(names: Vec<String>, model: Model) -> Self {
        assert!(!names.is_empty(), "a served model has a name");
        Self {
            names,
            model,
            created_s: unix_seconds(),
            n_requests: AtomicU64::new(0),
        }
    }

    /// The names the model answers to.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name that responses carry.
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// When the server loaded it, seconds since 1970.
    pub fn created_s(&self) -> u64 {
        self.created_s
    }

    /// The model itself.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.model.words().tokenizer()
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        self.model.engine()
    }

    /// Checks the model name of a request. A request without one, or with an empty one, means
    /// the model that is served.
    ///
    /// # Errors
    /// [`ApiError::UnknownModel`].
    pub fn check_name(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if !asked.is_empty() && !self.names.iter().any(|name| name == asked) => {
                Err(ApiError::UnknownModel {
                    model: asked.to_owned(),
                    available: self.names.join(", "),
                })
            }
            _ => Ok(()),
        }
    }

    /// A seed for a request that gives none.
    pub fn fresh_seed(&self) -> u64 {
        let count = self.n_requests.fetch_add(1, Ordering::Relaxed);
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        // Multiplying by an odd constant spreads neighbouring values; the sampler hashes the seed anyway.
        (nanos ^ count.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Renders a conversation with the model's chat template, for people to look at.
    ///
    /// # Errors
    /// No template, or what the template refused.
    pub fn render_chat(
        &self,
        messages: &[TemplateMessage],
        add_generation_prompt: bool,
        extra: Map<String, Value>,
    ) -> Result<String, ApiError> {
        let turn = if add_generation_prompt {
            Turn::Open
        } else {
            Turn::Closed
        };
        let conversation = conversation(messages, turn, extra);
        Ok(self.model.words().render_chat(&conversation)?)
    }

    /// Turns a conversation into the tokens that the model answers. Control tokens come from the template only: what
    /// looks like one in a message is text.
    ///
    /// # Errors
    /// No template, or what the template refused.
    pub fn encode_chat(
        &self,
        messages: &[TemplateMessage],
        turn: Turn,
        extra: Map<String, Value>,
    ) -> Result<Vec<u32>, ApiError> {
        if self.engine().limits().is_encoder {
            return Err(EngineError::PredictsNoTokens.into());
        }
        let conversation = conversation(messages, turn, extra);
        Ok(self.model.words().encode_chat(&conversation)?)
    }

    /// Turns a conversation with tools into its prompt, and says how the answer is read.
    ///
    /// # Errors
    /// As [`Self::encode_chat`].
    pub(crate) fn prompt(
        &self,
        messages: &[TemplateMessage],
        tools: &Tools,
        turn: Turn,
        extra: Map<String, Value>,
    ) -> Result<Prompt, ApiError> {
        if self.engine().limits().is_encoder {
            return Err(EngineError::PredictsNoTokens.into());
        }
        let conversation = tools.offer(conversation(messages, turn, extra));
        Ok(self.model.words().prompt(&conversation)?)
    }

    /// The source of its chat template, if it has one that can be used.
    pub fn chat_template(&self) -> Option<&str> {
        self.model.words().template().map(ChatTemplate::source)
    }

    /// Encodes plain text; what looks like a control token in it is text.
    pub fn encode_text(&self, text: &str, add_special: bool) -> Vec<u32> {
        self.model.words().encode_text(text, add_special)
    }

    /// Starts a generation for each prompt.
    ///
    /// # Errors
    /// What the engine refuses, in the client's words; prompts already submitted are then cancelled.
    pub fn generate(&self, prompts: Vec<Vec<u32>>, params: &TextParams) -> Result<TextStream, ApiError> {
        Ok(self.model.generate(prompts, params)?)
    }
}

fn conversation(messages: &[TemplateMessage], turn: Turn, variables: Map<String, Value>) -> Conversation {
    let to_value = |message| serde_json::to_value(message).expect("a message of strings is JSON");
    Conversation {
        turn,
        variables,
        ..Conversation::from_json(messages.iter().map(to_value).collect())
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            Error::Engine(error) => error.into(),
            Error::Template(error) => Self::Template {
                reason: error.to_string(),
            },
            Error::NoTemplate => Self::Template {
                reason: "this model has none; use /v1/completions with a prompt in the model's own format"
                    .to_owned(),
            },
            Error::MakesNoEmbeddings | Error::RanksNothing => Self::invalid("model", error.to_string()),
            Error::NoPlaceForInstruction => Self::invalid("instruction", error.to_string()),
            Error::UnknownTool { .. } => Self::invalid("tool_choice", error.to_string()),
            Error::CallForm(_) | Error::ShapeOrCalls { .. } => Self::invalid("tools", error.to_string()),
            Error::NotContinuable => Self::Template {
                reason: "it does not end in the last message's text, which so cannot be continued".to_owned(),
            },
            other => Self::Internal {
                reason: other.to_string(),
            },
        }
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

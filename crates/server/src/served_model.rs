//! [`ServedModel`]: the one model a server answers for: its names, its words, its engine.
//!
//! Separate from HTTP so that every endpoint starts a generation in the same way. Invariant: whatever reaches the engine
//! was checked here, and a refusal names the field at fault.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value};
use tokenmill_backend::SamplingParams;
use tokenmill_sched::{Engine, GenerateParams};
use tokenmill_text::{
    ChatPrompt, EncodeOptions, Tokenizer,
    template::{ChatContext, CivilTime, RenderOptions, TemplateError},
};

use crate::{
    ApiError,
    openai::chat::{TemplateMessage, Turn},
    text_stream::TextStream,
};

/// The words of a model: what turns text and conversations into tokens and back.
#[derive(Debug)]
pub struct ModelWords {
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template; a model without one only continues texts.
    pub chat: Option<ChatPrompt>,
    /// Text of the token that begins a sequence, for the template.
    pub bos_token: String,
    /// Text of the token that ends a sequence, for the template.
    pub eos_token: String,
    /// Tokens that end a generation, besides those the tokenizer knows.
    pub end_ids: Vec<u32>,
}

/// What a server needs of a loaded model.
#[derive(Debug)]
pub struct ServedModel {
    names: Vec<String>,
    words: ModelWords,
    end_ids: Vec<u32>,
    engine: Engine,
    created_s: u64,
    n_requests: AtomicU64,
}

/// What is generated, and when it ends.
#[derive(Clone, Debug)]
pub struct TextParams {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens; `None` continues to the end of the context.
    pub max_tokens: Option<u32>,
    /// Fewest tokens before one that ends a text.
    pub min_tokens: u32,
    /// Samples.
    pub n: u32,
    /// Strings that end a sample.
    pub stops: Vec<String>,
    /// Whether end-of-text tokens are ordinary tokens.
    pub ignore_eos: bool,
    /// Longest time from arrival to end.
    pub deadline: Option<Duration>,
    /// Longest time until it begins.
    pub queue_timeout: Option<Duration>,
    /// Higher begins first and may take the place of lower.
    pub priority: i32,
    /// Keeps cached prefixes apart from those of requests with another salt.
    pub cache_salt: u64,
}

impl ServedModel {
    /// Puts a model together. The first of `names` is the one that responses carry.
    ///
    /// # Panics
    /// When `names` is empty.
    pub fn new(names: Vec<String>, words: ModelWords, engine: Engine) -> Self {
        assert!(!names.is_empty(), "a served model has a name");
        let end_ids = [words.tokenizer.end_of_generation(), &words.end_ids].concat();
        Self {
            names,
            words,
            end_ids,
            engine,
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

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.words.tokenizer
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
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
        let chat = self.chat()?;
        let context = self.context(messages, add_generation_prompt, extra);
        chat.template()
            .render(&context.to_json(), &render_options())
            .map_err(|error| refused(&error))
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
        let chat = self.chat()?;
        let context = self.context(messages, turn == Turn::Open, extra);
        let tokenizer = &self.words.tokenizer;
        let encoded = if turn == Turn::Unfinished {
            chat.encode_unfinished(tokenizer, &context, &render_options())
        } else {
            chat.encode(tokenizer, &context, &render_options()).map(Some)
        };
        encoded
            .map_err(|error| refused(&error))?
            .ok_or_else(|| ApiError::Template {
                reason: "it does not end in the last message's text, which so cannot be continued".to_owned(),
            })
    }

    /// The source of its chat template, if it has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.words.chat.as_ref().map(|chat| chat.template().source())
    }

    fn chat(&self) -> Result<&ChatPrompt, ApiError> {
        self.words.chat.as_ref().ok_or_else(|| ApiError::Template {
            reason: "this model has none; use /v1/completions with a prompt in the model's own format"
                .to_owned(),
        })
    }

    fn context(
        &self,
        messages: &[TemplateMessage],
        add_generation_prompt: bool,
        extra: Map<String, Value>,
    ) -> ChatContext {
        let to_value = |message| serde_json::to_value(message).expect("a message of strings is JSON");
        ChatContext {
            messages: messages.iter().map(to_value).collect(),
            tools: None,
            add_generation_prompt,
            bos_token: self.words.bos_token.clone(),
            eos_token: self.words.eos_token.clone(),
            extra,
        }
    }

    /// Encodes plain text; what looks like a control token in it is text.
    pub fn encode_text(&self, text: &str, add_special: bool) -> Vec<u32> {
        self.words.tokenizer.encode(
            text,
            EncodeOptions {
                add_special,
                parse_special: false,
            },
        )
    }

    /// Starts a generation for each prompt.
    ///
    /// # Errors
    /// What the engine refuses, in the client's words; prompts already submitted are then cancelled.
    pub fn generate(&self, prompts: Vec<Vec<u32>>, params: &TextParams) -> Result<TextStream, ApiError> {
        let stop_tokens = if params.ignore_eos {
            Vec::new()
        } else {
            self.end_ids.clone()
        };
        let generate = GenerateParams {
            sampling: params.sampling.clone(),
            max_tokens: params.max_tokens.map(|n| n as usize),
            stop_tokens,
            n_samples: params.n,
            deadline: params.deadline,
            queue_timeout: params.queue_timeout,
            min_tokens: params.min_tokens as usize,
            priority: params.priority,
            cache_salt: params.cache_salt,
            ..GenerateParams::default()
        };
        let submit = |prompt| self.engine.submit(prompt, generate.clone());
        let generations = prompts.into_iter().map(submit).collect::<Result<Vec<_>, _>>()?;
        Ok(TextStream::new(
            generations,
            params.n,
            &self.words.tokenizer,
            &params.stops,
        ))
    }
}

fn render_options() -> RenderOptions {
    RenderOptions {
        now: CivilTime::from_unix_seconds(unix_seconds() as i64),
        ..RenderOptions::default()
    }
}

fn refused(error: &TemplateError) -> ApiError {
    ApiError::Template {
        reason: error.to_string(),
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

//! [`ModelWords`]: what turns text and conversations into a model's tokens.
//!
//! Separate from the model because words need no network. Invariant: control tokens come from the chat template only; what
//! looks like one in a message or a text is text.

use std::{
    sync::{Arc, OnceLock},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value, json};
use tokenmill_model::Model as Network;
use tokenmill_text::{
    ChatPrompt, DecodeOptions, EncodeOptions, Tokenizer,
    calls::ReplyFormat,
    constraint::{CompiledConstraint, Constraint, ConstraintCompiler, ConstraintError},
    template::{ChatContext, ChatMessage, ChatTemplate, CivilTime, RenderOptions, TemplateError},
};

use crate::{Error, ModelSource, constraint};

/// Tokens at the end of a prompt that tell how its answer begins.
const TAIL_TOKENS: usize = 32;

/// The words of a model.
#[derive(Debug)]
pub struct ModelWords {
    tokenizer: Arc<Tokenizer>,
    chat: Option<ChatPrompt>,
    template_error: Option<TemplateError>,
    bos_token: String,
    eos_token: String,
    end_ids: Vec<u32>,
    /// The tokens of [`DRY_BREAKERS`](crate::DRY_BREAKERS), once they are asked for.
    pub(crate) default_breakers: OnceLock<Vec<u32>>,
    /// Made when the first constraint is compiled.
    constraints: OnceLock<Result<ConstraintCompiler, ConstraintError>>,
}

impl ModelWords {
    /// Words without a chat template: such a model only continues texts.
    pub fn new(tokenizer: Tokenizer) -> Self {
        Self {
            end_ids: tokenizer.end_of_generation().to_vec(),
            tokenizer: Arc::new(tokenizer),
            chat: None,
            template_error: None,
            bos_token: String::new(),
            eos_token: String::new(),
            default_breakers: OnceLock::new(),
            constraints: OnceLock::new(),
        }
    }

    /// The words of an opened model. A template that cannot be used is kept as [`Self::template_error`]: it must not keep
    /// texts from being continued.
    ///
    /// # Errors
    /// A vocabulary that cannot be used, or is wider than the network; a template or configuration file that cannot be read.
    pub fn open(source: &ModelSource, network: &Network) -> Result<Self, Error> {
        let tokenizer = source.tokenizer_of(network)?;
        let files = source.chat_files(network.gguf(), &tokenizer)?;
        let mut words = Self::new(tokenizer);
        words.end_ids.extend(files.end_ids);
        words.bos_token = files.bos_token;
        words.eos_token = files.eos_token;
        if let Some(template) = files.template {
            words.template_error = words.set_template(template).err();
        }
        Ok(words)
    }

    /// Replaces the chat template.
    ///
    /// # Errors
    /// A template that does not parse.
    pub fn set_template(&mut self, source: impl AsRef<str>) -> Result<(), TemplateError> {
        let template = ChatTemplate::new(source.as_ref())?;
        self.chat = Some(ChatPrompt::new(template, &self.tokenizer));
        self.template_error = None;
        Ok(())
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The chat template; a model without one only continues texts.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref().map(ChatPrompt::template)
    }

    /// What is wrong with the model's own template, where it has one that cannot be used.
    pub fn template_error(&self) -> Option<&TemplateError> {
        self.template_error.as_ref()
    }

    /// The tokens that end a generation.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Compiles a constraint for this vocabulary, or finds it among those compiled before. It takes a second at most.
    ///
    /// # Errors
    /// [`Error::Constraint`]: what cannot be enforced, or which limit it exceeds.
    pub fn compile(&self, constraint: &Constraint) -> Result<CompiledConstraint, Error> {
        let compiler = (self.constraints).get_or_init(|| ConstraintCompiler::new(&self.tokenizer));
        Ok(compiler.as_ref().map_err(Clone::clone)?.compile(constraint)?)
    }

    /// Lets a constraint begin where the reasoning of the answer to `prompt` ends: the template tells how the model thinks, and
    /// the prompt's end whether it has begun to.
    pub fn after_reasoning(&self, constraint: Constraint, prompt: &[u32]) -> Constraint {
        let Some(template) = self.template() else {
            return constraint;
        };
        let tail = &prompt[prompt.len().saturating_sub(TAIL_TOKENS)..];
        let options = DecodeOptions {
            skip_special: false,
            is_continuation: true,
        };
        let tail = self.tokenizer.decode(tail, options);
        constraint::after_reasoning(constraint, &ReplyFormat::of_template(template.source()), &tail)
    }

    /// Encodes plain text. `add_special` puts the tokens around it that the model expects, such as that of the beginning.
    pub fn encode_text(&self, text: &str, add_special: bool) -> Vec<u32> {
        let options = EncodeOptions {
            add_special,
            parse_special: false,
        };
        self.tokenizer.encode(text, options)
    }

    /// Turns a conversation into the tokens that the model answers.
    ///
    /// # Errors
    /// [`Error::NoTemplate`], what the template refused, or [`Error::NotContinuable`].
    pub fn encode_chat(&self, conversation: &Conversation) -> Result<Vec<u32>, Error> {
        let chat = self.chat.as_ref().ok_or_else(|| self.no_template())?;
        let context = self.context(conversation);
        match conversation.turn {
            Turn::Unfinished => chat
                .encode_unfinished(&self.tokenizer, &context, &render_options())?
                .ok_or(Error::NotContinuable),
            Turn::Open | Turn::Closed => Ok(chat.encode(&self.tokenizer, &context, &render_options())?),
        }
    }

    /// Renders a conversation as the template writes it, to look at.
    ///
    /// # Errors
    /// As [`Self::encode_chat`].
    pub fn render_chat(&self, conversation: &Conversation) -> Result<String, Error> {
        let template = self.template().ok_or_else(|| self.no_template())?;
        Ok(template.render(&self.context(conversation).to_json(), &render_options())?)
    }

    fn no_template(&self) -> Error {
        match &self.template_error {
            Some(error) => error.clone().into(),
            None => Error::NoTemplate,
        }
    }

    fn context(&self, conversation: &Conversation) -> ChatContext {
        ChatContext {
            messages: conversation.messages.clone(),
            tools: conversation.tools.clone(),
            add_generation_prompt: conversation.turn == Turn::Open,
            bos_token: self.bos_token.clone(),
            eos_token: self.eos_token.clone(),
            extra: conversation.variables.clone(),
        }
    }
}

/// How the prompt of a conversation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The template opens the assistant's turn.
    Open,
    /// The last message is closed, and nothing follows.
    Closed,
    /// The last message is open: the model continues its text.
    Unfinished,
}

/// What a chat template renders.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// The messages, as objects with `role`, `content` and what else the template reads (`tool_calls`, `name`).
    pub messages: Vec<Value>,
    /// Tools that the model may call, in the form of OpenAI's `tools`.
    pub tools: Option<Value>,
    /// How the text ends.
    pub turn: Turn,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

impl Conversation {
    /// A conversation whose next turn is the assistant's.
    pub fn new(messages: Vec<Value>) -> Self {
        Self {
            messages,
            tools: None,
            turn: Turn::Open,
            variables: Map::new(),
        }
    }

    /// Offers tools to the model, a JSON array in the form of OpenAI's `tools`.
    #[must_use]
    pub fn tools(mut self, tools: Value) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Sets a variable of the template, such as `enable_thinking`.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }
}

impl From<&[ChatMessage]> for Conversation {
    fn from(messages: &[ChatMessage]) -> Self {
        let to_json = |message: &ChatMessage| json!({"role": message.role, "content": message.content});
        Self::new(messages.iter().map(to_json).collect())
    }
}

impl<const N: usize> From<&[ChatMessage; N]> for Conversation {
    fn from(messages: &[ChatMessage; N]) -> Self {
        Self::from(&messages[..])
    }
}

impl From<&Vec<ChatMessage>> for Conversation {
    fn from(messages: &Vec<ChatMessage>) -> Self {
        Self::from(&messages[..])
    }
}

/// The time that a template sees as now, in UTC.
pub fn utc_now() -> CivilTime {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    CivilTime::from_unix_seconds(seconds as i64)
}

fn render_options() -> RenderOptions {
    RenderOptions {
        now: utc_now(),
        ..RenderOptions::default()
    }
}

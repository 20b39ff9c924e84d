//! [`ServedModel`]: a model that a server answers for, and its names.
//!
//! Names, messages in the client's terms and fresh seeds concern the API, not the model. Invariant: every
//! request was checked here before it reaches the engine, and a refusal names the field at fault.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value};
use tokenmill::{Conversation, Error, Model, TextParams, TextStream, text::Prompt};
use tokenmill_sched::{Engine, EngineError};
use tokenmill_text::{Tokenizer, template::ChatTemplate};

use crate::{
    ApiError,
    app::name_bounds::check_names,
    dialects::openai::chat::{TemplateMessage, Turn},
    model_names::{forms, is_of_repository, is_variant, listed, near_names},
    requests::tools::Tools,
};

/// Holds the parts of a loaded model that a server needs.
#[derive(Debug)]
pub struct ServedModel {
    names: Vec<String>,
    /// Name under which the server was started, if it is not one of the model's names.
    given: Option<String>,
    /// Types that distinguish it in its repository of the Hub.
    variants: Vec<String>,
    /// Whether an unknown model name selects this model too.
    answers_any_name: bool,
    model: Model,
    created_s: u64,
    n_requests: AtomicU64,
}

/// Names the model and adapter that answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The name that its response carries.
    pub name: String,
    /// The adapter, if it names one.
    pub adapter: Option<String>,
}

impl Chosen {
    /// Refuses an adapter.
    ///
    /// # Errors
    /// The name of an adapter.
    pub(crate) fn without_adapter(&self) -> Result<(), ApiError> {
        match &self.adapter {
            None => Ok(()),
            Some(adapter) => {
                let reason =
                    format!("the adapter `{adapter}` is used to generate text only; name the model itself");
                Err(ApiError::invalid("model", reason))
            }
        }
    }
}

impl ServedModel {
    /// Creates a model. Responses carry the first of `names`.
    ///
    /// # Panics
    /// When `names` is empty.
    pub fn new(names: Vec<String>, model: Model) -> Self {
        assert!(!names.is_empty(), "a served model has a name");
        Self {
            names,
            given: None,
            variants: Vec::new(),
            answers_any_name: false,
            model,
            created_s: unix_seconds(),
            n_requests: AtomicU64::new(0),
        }
    }

    /// Adds the name under which the server was started, such as a path. Lists do not show it.
    #[must_use]
    pub fn given_as(mut self, given: Option<String>) -> Self {
        self.given = given;
        self
    }

    /// Adds variants, such as a type, that may follow the name of its repository of the Hub.
    #[must_use]
    pub fn with_variants(mut self, variants: Vec<String>) -> Self {
        self.variants = variants;
        self
    }

    /// Lets any model name select the model, because clients have names of other models built in. A server with adapters, which requests
    /// select by name, still refuses unknown names.
    #[must_use]
    pub fn answering_any_name(mut self) -> Self {
        self.answers_any_name = true;
        self
    }

    /// Says whether an unknown name selects the model.
    pub(crate) fn answers_any_name(&self) -> bool {
        self.answers_any_name
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

    /// Finds the model that a request names: the model, one of its adapters by name, or one as `model:adapter`. Each may have the tag
    /// `:latest`, `.gguf` and its source (`ollama:`, `hf:`), and a model of the Hub is found without its type or with it too. A request without a
    /// name, or with an empty one, selects the model; so does any other if the model [answers any name](Self::answering_any_name).
    ///
    /// # Errors
    /// [`ApiError::UnknownModel`].
    pub fn choose(&self, asked: Option<&str>) -> Result<Chosen, ApiError> {
        match self.find(asked) {
            Err(ApiError::UnknownModel { .. })
                if self.answers_any_name && self.model.adapters().is_empty() =>
            {
                Ok(self.itself())
            }
            found => found,
        }
    }

    /// Does the same as [`Self::choose`], but matches only the model's own names, to answer whether a model exists.
    ///
    /// # Errors
    /// [`ApiError::UnknownModel`].
    pub fn find(&self, asked: Option<&str>) -> Result<Chosen, ApiError> {
        let asked = asked.unwrap_or_default();
        let of_repository = || {
            let mut forms = forms(asked).into_iter();
            let is_of = |name: &str, form: &str| {
                is_of_repository(name, form) || is_variant(name, form, &self.variants)
            };
            let is_it = forms.any(|form| self.names.iter().any(|name| is_of(name, &form)));
            is_it.then(|| self.itself())
        };
        (self.choose_by_name(asked))
            .or_else(of_repository)
            .ok_or_else(|| self.unknown(asked))
    }

    /// Does the same as [`Self::choose`], but matches a model of the Hub only by its whole name.
    pub(crate) fn choose_by_name(&self, asked: &str) -> Option<Chosen> {
        forms(asked).iter().find_map(|form| self.choose_exactly(form))
    }

    /// The model without an adapter.
    fn itself(&self) -> Chosen {
        Chosen {
            name: self.name().to_owned(),
            adapter: None,
        }
    }

    fn choose_exactly(&self, asked: &str) -> Option<Chosen> {
        if asked.is_empty() || self.all_names().any(|name| name == asked) {
            return Some(self.itself());
        }
        let behind = |name: &str| asked.strip_prefix(name)?.strip_prefix(':');
        let mut adapters = [asked].into_iter().chain(self.all_names().filter_map(behind));
        let adapter = adapters.find(|adapter| self.model.adapter(adapter).is_ok())?;
        Some(Chosen {
            name: asked.to_owned(),
            adapter: Some(adapter.to_owned()),
        })
    }

    /// Lists its names, and the one under which it was given.
    fn all_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().chain(&self.given).map(String::as_str)
    }

    /// Checks the model name of a request for which an adapter makes no difference.
    ///
    /// # Errors
    /// [`ApiError::UnknownModel`].
    pub fn check_name(&self, asked: Option<&str>) -> Result<(), ApiError> {
        self.choose(asked).map(drop)
    }

    /// Checks the model name of a request that is computed without an adapter.
    ///
    /// # Errors
    /// [`ApiError::UnknownModel`], and the name of an adapter.
    pub(crate) fn check_own_name(&self, asked: Option<&str>) -> Result<(), ApiError> {
        self.choose(asked)?.without_adapter()
    }

    fn unknown(&self, asked: &str) -> ApiError {
        let adapters = self.model.adapters().into_iter().map(|adapter| adapter.name);
        let available: Vec<String> = self.names.iter().cloned().chain(adapters).collect();
        ApiError::UnknownModel {
            model: asked.to_owned(),
            near: near_names(asked, available.iter().map(String::as_str)).join(", "),
            available: listed(available.iter().map(String::as_str)),
        }
    }

    /// A seed for a request that gives none, of 32 bits: each client reads such a number as it is.
    pub fn fresh_seed(&self) -> u64 {
        let count = self.n_requests.fetch_add(1, Ordering::Relaxed);
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        // Multiplying by an odd constant spreads neighbouring values; the sampler hashes the seed anyway.
        (nanos ^ count.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }

    /// Renders a conversation with the model's chat template, for display. The text of the BOS token is left out if prompts get it anyway.
    ///
    /// # Errors
    /// No template, or a refusal of the template.
    pub(crate) fn render_chat(
        &self,
        messages: &[TemplateMessage],
        tools: &Tools,
        add_generation_prompt: bool,
        extra: Map<String, Value>,
    ) -> Result<String, ApiError> {
        let turn = if add_generation_prompt {
            Turn::Open
        } else {
            Turn::Closed
        };
        check_names(messages)?;
        let conversation = tools.offer(conversation(messages, turn, extra));
        let mut prompt = self.model.words().render_chat(&conversation)?;
        let tokenizer = self.tokenizer();
        let begin = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let begin = begin.and_then(|bos| tokenizer.token_bytes(bos));
        if let Some(begin) = begin.filter(|begin| !begin.is_empty() && prompt.as_bytes().starts_with(begin)) {
            prompt.drain(..begin.len());
        }
        Ok(prompt)
    }

    /// Turns a conversation into the tokens that the model answers. Control tokens come from the template only: what
    /// looks like one in a message is text.
    ///
    /// # Errors
    /// No template, or a refusal of the template.
    pub(crate) fn encode_chat(
        &self,
        messages: &[TemplateMessage],
        tools: &Tools,
        turn: Turn,
        extra: Map<String, Value>,
    ) -> Result<Vec<u32>, ApiError> {
        if self.engine().limits().is_encoder {
            return Err(EngineError::PredictsNoTokens.into());
        }
        check_names(messages)?;
        let conversation = tools.offer(conversation(messages, turn, extra));
        Ok(self.model.words().encode_chat(&conversation)?)
    }

    /// Turns a conversation with tools into its prompt, and says how the answer is read.
    ///
    /// # Errors
    /// Returns the errors of [`Self::encode_chat`].
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
        check_names(messages)?;
        let conversation = tools.offer(conversation(messages, turn, extra));
        Ok(self.model.words().prompt(&conversation)?)
    }

    /// The source of its chat template, if it has one that can be used.
    pub fn chat_template(&self) -> Option<&str> {
        self.model.words().template().map(ChatTemplate::source)
    }

    /// Encodes a prompt that the client has formatted ([`ModelWords::encode_prompt`](tokenmill::text::ModelWords::encode_prompt)), as llama.cpp
    /// and vLLM do.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        self.model.words().encode_prompt(text)
    }

    /// Starts a generation for each prompt.
    ///
    /// # Errors
    /// Fails if the engine refuses a prompt; earlier prompts are then cancelled.
    pub fn generate(&self, prompts: Vec<Vec<u32>>, params: &TextParams) -> Result<TextStream, ApiError> {
        Ok(self.model.generate(prompts, params)?)
    }
}

fn conversation(messages: &[TemplateMessage], turn: Turn, variables: Map<String, Value>) -> Conversation {
    let to_value = |message: &TemplateMessage| {
        let mut value = serde_json::to_value(message).expect("a message of strings is JSON");
        if !message.parts.is_empty() {
            value["content"] = message.parts.clone().into();
        }
        value
    };
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
            Error::UnknownAdapter { name, available } => Self::UnknownModel {
                model: name,
                near: String::new(),
                available: available.join(", "),
            },
            Error::AdapterName { .. } | Error::TooManyAdapters { .. } => {
                Self::invalid("lora_name", error.to_string())
            }
            Error::NoAdapters => Self::invalid("lora_path", error.to_string()),
            Error::MakesNoEmbeddings | Error::RanksNothing => Self::invalid("model", error.to_string()),
            Error::NoPlaceForInstruction => Self::invalid("instruction", error.to_string()),
            Error::NoVision => Self::invalid(
                "messages",
                format!(
                    "{error}; the server's `--mmproj FILE` gives it one, and `tokenmill pull NAME` downloads that of a model by name"
                ),
            ),
            Error::SeesNoImages { .. }
            | Error::ImagePlaces { .. }
            | Error::ImageUrl { .. }
            | Error::Image { .. } => Self::invalid("messages", error.to_string()),
            Error::UnknownTool { .. } => Self::invalid("tool_choice", error.to_string()),
            Error::CallForm(_) | Error::ShapeOrCalls { .. } => Self::invalid("tools", error.to_string()),
            Error::NotContinuable => Self::Template {
                reason: "it does not end in the last message's text, which therefore cannot be continued"
                    .to_owned(),
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

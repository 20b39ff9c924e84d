//! [`ModelWords`]: converts text and conversations to a model's tokens.
//!
//! No network is needed for it. Invariant: control tokens come from the chat template only; in a message or a
//! text, their spelling is text.

mod answer_place;
mod image_places;
mod prompts;

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};
use tokenmill_gguf::GgufFile;
use tokenmill_model::{Model as Network, PooledOutput, VisionShape};
use tokenmill_sched::EngineError;
use tokenmill_text::{
    ChatPrompt, DecodeOptions, EncodeOptions, Tokenizer,
    constraint::{CompiledConstraint, Constraint, ConstraintCompiler, ConstraintError},
    template::{ChatTemplate, TemplateError},
};

pub(crate) use self::answer_place::{AnswerPlace, without_reasoning};
pub use self::prompts::utc_now;
use self::{image_places::ImagePlaces, prompts::render_options};
use crate::{
    Conversation, Error,
    constraint::{self, Holds},
    decide_error::DecideError,
    decision::{
        family::{DecisionFamily, has_pointer_head, open_family},
        temperatures::DecisionTemperatures,
    },
    model_source::ModelSource,
    reply::{Prompt, ReplyWords},
    rerank::{INSTRUCTION, QWEN3_PROMPT, RankWords},
    vision::{SIGHTED, around_in_text, image_words},
};

/// Tokens at the end of a prompt that tell how its answer begins.
const TAIL_TOKENS: usize = 32;

/// The words of a model.
#[derive(Debug)]
pub struct ModelWords {
    tokenizer: Arc<Tokenizer>,
    chat: Option<ChatPrompt>,
    replies: Option<ReplyWords>,
    template_error: Option<TemplateError>,
    bos_token: String,
    eos_token: String,
    /// Template variables for conversations that do not set them.
    variables: Map<String, Value>,
    end_ids: Vec<u32>,
    pooled_output: Option<PooledOutput>,
    rank_words: Option<RankWords>,
    /// Prompt that asks about a document, if the input is not just the query and the document.
    rank_prompt: Option<ChatPrompt>,
    /// How the model is asked, if it was trained for decisions; or why it cannot be.
    decision_family: Result<Option<DecisionFamily>, DecideError>,
    has_decision_head: bool,
    /// The temperatures next to the model.
    decision_temperatures: Result<DecisionTemperatures, DecideError>,
    /// Tokens that stand for an image, if the model takes images.
    images: Option<ImagePlaces>,
    /// The architecture, where there are no image encoders for it.
    blind_arch: Option<String>,
    /// The tokens of [`DRY_BREAKERS`](crate::sampling::DRY_BREAKERS), once they are requested.
    pub(crate) default_breakers: OnceLock<Vec<u32>>,
    /// Made ahead of time or when the first constraint is compiled.
    constraints: Arc<OnceLock<Result<ConstraintCompiler, ConstraintError>>>,
}

impl ModelWords {
    /// Words without a chat template: such a model only continues texts.
    pub fn new(tokenizer: Tokenizer) -> Self {
        Self {
            end_ids: tokenizer.end_of_generation().to_vec(),
            tokenizer: Arc::new(tokenizer),
            chat: None,
            replies: None,
            template_error: None,
            bos_token: String::new(),
            eos_token: String::new(),
            variables: thinking(),
            pooled_output: None,
            rank_words: None,
            rank_prompt: None,
            decision_family: Ok(None),
            has_decision_head: false,
            decision_temperatures: Ok(DecisionTemperatures::default()),
            images: None,
            blind_arch: None,
            default_breakers: OnceLock::new(),
            constraints: Arc::default(),
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
        words.set_rank_words(source, network)?;
        words.decision_family = match open_family(network, &words.tokenizer) {
            Err(Error::Decide(error)) => Err(error),
            found => Ok(found?),
        };
        // A fault of that file must not keep texts from being continued, nor the file from being written again.
        words.decision_temperatures = match DecisionTemperatures::read(source) {
            Err(Error::Decide(error)) => Err(error),
            found => Ok(found?.unwrap_or_default()),
        };
        let arch = &network.descriptor().arch;
        words.blind_arch = (!SIGHTED.contains(&arch.as_str())).then(|| arch.clone());
        Ok(words)
    }

    /// Finds out whether the model ranks documents, and how it is asked.
    fn set_rank_words(&mut self, source: &ModelSource, network: &Network) -> Result<(), Error> {
        let metadata = network.gguf().map(GgufFile::metadata);
        let text = |key| metadata.map_or(Ok(None), |metadata| metadata.opt_str(key));
        let own_prompt = text("tokenizer.chat_template.rerank")?;
        let is_named = |name: &str| name.to_ascii_lowercase().contains("rerank");
        let is_reranker =
            own_prompt.is_some() || is_named(&source.name()) || text("general.name")?.is_some_and(is_named);
        let descriptor = network.descriptor();
        self.has_decision_head = descriptor.decision.is_some() || has_pointer_head(network);
        if self.has_decision_head {
            return Ok(());
        }
        self.pooled_output = descriptor.pooling.as_ref().map(|pooling| pooling.output);
        self.rank_words = match self.pooled_output {
            Some(PooledOutput::Rank) => Some(RankWords::Head),
            None if is_reranker => (self.only_token("yes"))
                .zip(self.only_token("no"))
                .map(|(yes, no)| RankWords::YesNo { yes, no }),
            _ => None,
        };
        if self.rank_words.is_some() && !descriptor.is_encoder() {
            // Places of the prompt become messages, whose text is not searched for control tokens. The text after them keeps
            // the last line break, which templates lose.
            let prompt = own_prompt.unwrap_or(QWEN3_PROMPT);
            let template = ["{query}", "{document}", "{instruction}"]
                .into_iter()
                .enumerate()
                .fold(prompt.to_owned(), |template, (index, place)| {
                    template.replace(place, &format!("{{{{ messages[{index}].content }}}}"))
                });
            let template = ChatTemplate::new(&(template + "{{ '' }}"))?;
            self.rank_prompt = Some(ChatPrompt::new(template, &self.tokenizer));
        }
        Ok(())
    }

    /// The token that is all of a text.
    fn only_token(&self, text: &str) -> Option<u32> {
        match self.encode_text(text, false)[..] {
            [token] => Some(token),
            _ => None,
        }
    }

    /// Returns the result of the network for a text, if it was made for that: a vector or a score.
    pub fn pooled_output(&self) -> Option<PooledOutput> {
        self.pooled_output
    }

    /// Returns how the model is asked if it was trained for decisions.
    ///
    /// # Errors
    /// The fault of its file, or the name of its family if that is not supported.
    pub(crate) fn decision_family(&self) -> Result<Option<&DecisionFamily>, DecideError> {
        self.decision_family
            .as_ref()
            .map(Option::as_ref)
            .map_err(Clone::clone)
    }

    /// Returns whether the network scores the options of questions, and does nothing else.
    pub fn has_decision_head(&self) -> bool {
        self.has_decision_head
    }

    /// Returns the fitted temperatures of decisions.
    ///
    /// # Errors
    /// [`DecideError::TemperatureFile`] for a file next to the model that cannot be read.
    pub fn decision_temperatures(&self) -> Result<&DecisionTemperatures, DecideError> {
        self.decision_temperatures.as_ref().map_err(Clone::clone)
    }

    /// Returns how the model is asked whether a document answers a query; `None` if it was not made for that.
    pub fn rank_words(&self) -> Option<&RankWords> {
        self.rank_words.as_ref()
    }

    /// Turns a query and a document into the tokens that a reranker scores. `instruction` says what the query wants, for
    /// models whose prompt has a place for it.
    ///
    /// # Errors
    /// [`Error::RanksNothing`], or [`Error::NoPlaceForInstruction`].
    pub fn encode_pair(
        &self,
        query: &str,
        document: &str,
        instruction: Option<&str>,
    ) -> Result<Vec<u32>, Error> {
        if self.rank_words.is_none() {
            return Err(Error::RanksNothing);
        }
        if let Some(prompt) = &self.rank_prompt {
            let texts = [query, document, instruction.unwrap_or(INSTRUCTION)];
            let messages = texts.map(|text| json!({"role": "user", "content": text}));
            let (context, _) = self.context(&Conversation::from_json(messages.to_vec()))?;
            return Ok(prompt.encode(&self.tokenizer, &context, &render_options())?);
        }
        if instruction.is_some() {
            return Err(Error::NoPlaceForInstruction);
        }
        let mut pair = self.encode_text(query, true);
        let mut second = self.encode_text(document, true);
        let begin = self.tokenizer.bos().filter(|bos| second.first() == Some(bos));
        match (begin, self.tokenizer.eos()) {
            // RoBERTa's family parts the two with another end.
            (Some(bos), Some(eos)) if self.tokenizer.token_bytes(bos) == Some(b"<s>") => second[0] = eos,
            (Some(_), _) => {
                second.remove(0);
            }
            (None, _) => {}
        }
        pair.extend(second);
        Ok(pair)
    }

    /// Sets the tokens of an image in prompts of a model whose encoder is of this shape, for contexts of `n_ctx` tokens.
    ///
    /// # Errors
    /// [`Error::NoImageMark`].
    pub(crate) fn set_images(&mut self, shape: &VisionShape, n_ctx: usize) -> Result<(), Error> {
        let words = image_words(shape.family);
        let mark =
            (self.tokenizer.special_token(words.mark)).ok_or(Error::NoImageMark { mark: words.mark })?;
        self.images = Some(ImagePlaces {
            words,
            mark,
            size: shape.size,
            n_ctx,
        });
        if let Some(chat) = &mut self.chat {
            chat.set_image_words(Some(words));
        }
        Ok(())
    }

    /// Replaces the chat template.
    ///
    /// # Errors
    /// A template that does not parse.
    pub fn set_template(&mut self, source: impl AsRef<str>) -> Result<(), TemplateError> {
        let template = ChatTemplate::new(source.as_ref())?;
        self.replies = Some(ReplyWords::new(&template, &self.tokenizer));
        let mut chat = ChatPrompt::new(template, &self.tokenizer);
        chat.set_image_words(self.images.as_ref().map(|images| images.words));
        self.chat = Some(chat);
        self.template_error = None;
        Ok(())
    }

    /// Sets template variables for conversations that do not set them, such as `enable_thinking`, which is true by default.
    pub fn set_variables(&mut self, variables: Map<String, Value>) {
        self.variables = thinking();
        self.variables.extend(variables);
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The chat template; a model without one only continues texts.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref().map(ChatPrompt::template)
    }

    /// Returns the fault of the model's own template, if it has an unusable one.
    pub fn template_error(&self) -> Option<&TemplateError> {
        self.template_error.as_ref()
    }

    /// The tokens that end a generation.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Compiles a constraint for this vocabulary, or finds it among those compiled before. It takes a second of CPU time at most.
    ///
    /// # Errors
    /// [`Error::Constraint`]: the part that cannot be enforced, or the limit that it exceeds.
    pub fn compile(&self, constraint: &Constraint) -> Result<CompiledConstraint, Error> {
        self.compile_for(constraint, 0)
    }

    /// Compiles a constraint for one of several clients, none of whom can block the others.
    pub(crate) fn compile_for(
        &self,
        constraint: &Constraint,
        client: u64,
    ) -> Result<CompiledConstraint, Error> {
        let compiler = (self.constraints).get_or_init(|| ConstraintCompiler::new(&self.tokenizer));
        let compiler = compiler.as_ref().map_err(Clone::clone)?;
        Ok(compiler.compile_for(constraint, client)?)
    }

    /// Says whether [`Self::compile`] takes no time for a constraint: it was compiled not long ago, or the vocabulary can follow none.
    pub fn has_compiled(&self, constraint: &Constraint) -> bool {
        let compiler = self.constraints.get();
        compiler.is_some_and(|compiler| (compiler.as_ref()).map_or(true, |compiler| compiler.has(constraint)))
    }

    /// Whether the tokens of an answer are a whole text of a constraint, which may end there. An answer cut by a limit need not be.
    ///
    /// # Errors
    /// [`Error::Constraint`], as [`Self::compile`].
    pub fn is_whole(&self, constraint: &Constraint, tokens: &[u32]) -> Result<bool, Error> {
        let end_ids = &self.end_ids;
        let mut matcher = self.compile(constraint)?.matcher(end_ids);
        // The mask decides whether the text may end at this position.
        for &token in tokens.iter().take_while(|token| !end_ids.contains(token)) {
            // Tokens that a constraint refuses are not part of its text.
            if matcher.commit(token).is_err() {
                return Ok(false);
            }
        }
        if matcher.is_complete() {
            return Ok(true);
        }
        if matcher.has_left() {
            return Ok(false);
        }
        let mut mask = vec![0_u32; self.tokenizer.n_vocab().div_ceil(32)];
        matcher.mask(&mut mask)?;
        let may_come =
            |&id: &u32| (mask.get(id as usize / 32)).is_some_and(|word| word & (1 << (id % 32)) != 0);
        Ok(matcher.is_complete() || end_ids.iter().any(may_come))
    }

    /// Prepares the vocabulary for constraints, on a thread of its own: it takes seconds for large vocabularies,
    /// which the first constraint else waits for.
    pub fn prepare_constraints(&self) {
        let (constraints, tokenizer) = (Arc::clone(&self.constraints), Arc::clone(&self.tokenizer));
        // Without the thread, the first constraint makes it.
        let _ = std::thread::Builder::new()
            .name("vocabulary".to_owned())
            .spawn(move || {
                constraints.get_or_init(|| ConstraintCompiler::new(&tokenizer));
            });
    }

    /// Combines all restrictions of the answer to a prompt: a constraint, calls of tools, and the reasoning budget. The template determines
    /// how the model reasons, and the end of the prompt whether reasoning has begun. Required calls replace the constraint; otherwise the
    /// answer is either calls or a text of the constraint.
    ///
    /// # Errors
    /// [`Error::ShapeOrCalls`] where the two cannot be told apart, or the calls cannot be held to anything.
    pub fn held_to(
        &self,
        prompt: &Prompt,
        constraint: Option<Constraint>,
        thinking_budget: Option<u32>,
    ) -> Result<Option<Constraint>, Error> {
        let (constraint, holds) = match (constraint, &prompt.calls) {
            (_, Some(calls)) if prompt.is_call_required => (calls.clone(), Holds::Calls),
            (Some(constraint), Some(calls)) => {
                let family = (self.replies.as_ref()).map_or("generic", |replies| replies.format.name());
                let either = constraint.or_calls(calls);
                (either.ok_or(Error::ShapeOrCalls { family })?, Holds::Text)
            }
            (Some(constraint), None) => (constraint, Holds::Text),
            (None, Some(calls)) => (calls.clone(), Holds::Nothing),
            (None, None) => (Constraint::anything(), Holds::Nothing),
        };
        let is_anything = constraint == Constraint::anything();
        let budget = thinking_budget.map(|n_tokens| n_tokens as usize);
        let Some(replies) = (self.replies.as_ref()).filter(|_| !is_anything || budget.is_some()) else {
            return Ok((!is_anything).then_some(constraint));
        };
        let tail = self.tail(&prompt.tokens);
        let held = constraint::after_reasoning(constraint, holds, budget, &replies.format, &tail);
        Ok((held != Constraint::anything()).then_some(held))
    }

    /// The text of a prompt's end, with its control tokens.
    fn tail(&self, prompt: &[u32]) -> String {
        let options = DecodeOptions {
            skip_special: false,
            is_continuation: true,
        };
        (self.tokenizer).decode(&prompt[prompt.len().saturating_sub(TAIL_TOKENS)..], options)
    }

    /// Encodes plain text. `add_special` adds the tokens that the model expects around it, such as BOS.
    pub fn encode_text(&self, text: &str, add_special: bool) -> Vec<u32> {
        let options = EncodeOptions {
            add_special,
            parse_special: false,
        };
        self.tokenizer.encode(text, options)
    }

    /// Encodes a prompt that the client has formatted: control tokens may be written out in it, and a prompt that begins with the BOS token
    /// does not get another.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let mut tokens = self.tokenizer.encode(text, options);
        let bos = self.tokenizer.bos();
        if bos.is_some() && tokens.first().copied() == bos && tokens.get(1).copied() == bos {
            tokens.remove(0);
        }
        tokens
    }

    /// Encodes a prompt like [`Self::encode_prompt`]; each `place` in the text stands for one of the `files`, images in their order.
    ///
    /// # Errors
    /// The error of [`Self::no_vision`], [`Error::ImagePlaces`], [`Error::Image`], and [`Error::Engine`] if the images take many times the
    /// context.
    pub fn prompt_with_images(
        &self,
        text: &str,
        place: &str,
        files: Vec<Arc<[u8]>>,
    ) -> Result<Prompt, Error> {
        let places = self.images.as_ref().ok_or_else(|| self.no_vision())?;
        let found = text.matches(place).count();
        if found != files.len() {
            return Err(Error::ImagePlaces {
                found,
                expected: files.len(),
            });
        }
        let [before, after] = around_in_text(&places.words);
        let text = text.replace(place, &[before, places.words.mark, after].concat());
        let (tokens, images) = places.place(&self.encode_prompt(&text), files)?;
        Ok(Prompt {
            images,
            ..Prompt::of_text(tokens)
        })
    }

    /// Why images are refused where the model has no encoder: [`Error::NoVision`], or [`Error::SeesNoImages`] where there is none for it.
    pub fn no_vision(&self) -> Error {
        match &self.blind_arch {
            Some(arch) => Error::SeesNoImages {
                arch: arch.clone(),
                sighted: SIGHTED.to_vec(),
            },
            None => Error::NoVision,
        }
    }

    /// Refuses more images than the context holds, before anything of them is known but their number.
    ///
    /// # Errors
    /// Returns the error of [`Self::no_vision`], and [`Error::Engine`] if the rows that they have at least take more than the context.
    pub fn check_images(&self, n_images: usize) -> Result<(), Error> {
        if n_images == 0 {
            return Ok(());
        }
        let images = self.images.as_ref().ok_or_else(|| self.no_vision())?;
        let provided = n_images.saturating_mul(images.least_rows());
        if provided > images.n_ctx {
            let maximum = images.n_ctx;
            return Err(EngineError::ContextLimitExceeded { provided, maximum }.into());
        }
        Ok(())
    }
}

/// Turns reasoning on by default, as in llama.cpp and Ollama, because templates differ in their own defaults.
fn thinking() -> Map<String, Value> {
    Map::from_iter([("enable_thinking".to_owned(), true.into())])
}

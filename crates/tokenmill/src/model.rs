//! [`Model`]: a loaded model that takes text and gives text.
//!
//! Everything here is a few lines over [`Model::generate`], so every caller goes the same way from a prompt
//! to an answer. Invariant: a caller's wait never blocks another caller; the engine runs their requests side
//! by side.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokenmill_backend::MemoryPlan;
use tokenmill_model::PooledOutput;
use tokenmill_sched::{Engine, EngineError, GenerateParams};
use tokenmill_text::constraint::ConstraintError;

use crate::{
    Answer, Constraint, Conversation, Error, TextParams, TextStream,
    adapters::Shelf,
    constraint,
    draft_facts::DraftFacts,
    embeddings::Embeddings,
    facts::ModelFacts,
    loaded::LoadedDevice,
    machine_memory::bytes_of,
    prefix_folder::{ModelStore, PrefixFolderFigures},
    reply::Prompt,
    rerank::Scores,
    text_params::EngineParams,
    vision::Vision,
    words::ModelWords,
};

/// A loaded model. Clones are handles to the same one, and any thread may use them; dropping the last ends its engine.
#[derive(Clone, Debug)]
pub struct Model {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    words: ModelWords,
    engine: Engine,
    device: LoadedDevice,
    memory: Option<MemoryPlan>,
    facts: Option<ModelFacts>,
    draft: Option<DraftFacts>,
    shelf: Shelf,
    identity: Option<u128>,
    vision: Option<Vision>,
    page_store: Option<Arc<ModelStore>>,
}

impl Model {
    /// Joins an engine that runs with its words, for callers that set up their own.
    pub fn from_parts(
        name: impl Into<String>,
        words: ModelWords,
        engine: Engine,
        device: LoadedDevice,
        memory: Option<MemoryPlan>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                name: name.into(),
                words,
                engine,
                device,
                memory,
                facts: None,
                draft: None,
                shelf: Shelf::new(None, 0),
                identity: None,
                vision: None,
                page_store: None,
            }),
        }
    }

    /// Tells where its pages are kept.
    #[must_use]
    pub(crate) fn with_page_store(self, page_store: Option<Arc<ModelStore>>) -> Self {
        let inner = Arc::into_inner(self.inner).expect("nothing shares a model that was just made");
        Self {
            inner: Arc::new(Inner { page_store, ..inner }),
        }
    }

    /// Returns how its pages in [`LoadOptions::prefix_folder`](crate::LoadOptions::prefix_folder) were used; `None` without a folder.
    pub fn prefix_folder_figures(&self) -> Option<PrefixFolderFigures> {
        self.inner.page_store.as_ref().map(|store| store.figures())
    }

    /// Lets it see.
    #[must_use]
    pub(crate) fn with_vision(self, vision: Option<Vision>) -> Self {
        let inner = Arc::into_inner(self.inner).expect("nothing shares a model that was just made");
        Self {
            inner: Arc::new(Inner { vision, ..inner }),
        }
    }

    /// Returns the facts in the model's files.
    #[must_use]
    pub(crate) fn with_facts(self, facts: ModelFacts) -> Self {
        let inner = Arc::into_inner(self.inner).expect("nothing shares a model that was just made");
        Self {
            inner: Arc::new(Inner {
                facts: Some(facts),
                ..inner
            }),
        }
    }

    /// Sets the facts about the draft model or MTP layer.
    #[must_use]
    pub(crate) fn with_draft(self, draft: Option<DraftFacts>) -> Self {
        let inner = Arc::into_inner(self.inner).expect("nothing shares a model that was just made");
        Self {
            inner: Arc::new(Inner { draft, ..inner }),
        }
    }

    /// Lets it have adapters.
    #[must_use]
    pub(crate) fn with_shelf(self, shelf: Shelf) -> Self {
        let inner = Arc::into_inner(self.inner).expect("nothing shares a model that was just made");
        Self {
            inner: Arc::new(Inner { shelf, ..inner }),
        }
    }

    pub(crate) fn shelf(&self) -> &Shelf {
        &self.inner.shelf
    }

    /// Gives the model a number that tells it from others, so that its sessions can be kept: the same where weights and network are.
    ///
    /// # Panics
    /// Where the model has been cloned already.
    #[must_use]
    pub fn with_identity(self, identity: u128) -> Self {
        let inner = Arc::into_inner(self.inner).expect("nothing shares a model that was just made");
        Self {
            inner: Arc::new(Inner {
                identity: Some(identity),
                ..inner
            }),
        }
    }

    /// The number that tells it from other models; `None` for one that was put together without.
    pub fn identity(&self) -> Option<u128> {
        self.inner.identity
    }

    /// Whether it takes images.
    pub fn sees(&self) -> bool {
        self.inner.vision.is_some()
    }

    /// Makes the rows of a prompt's images, for [`EngineParams::media`]. It takes as long as the encoder does, seconds for a large one;
    /// nothing for a prompt without images, and for images that it saw not long ago. `cache_salt` keeps what is kept of images
    /// apart from that of requests with another one.
    ///
    /// # Errors
    /// [`Error::Engine`] where the prompt is longer than the context, before anything is computed; what [`ModelWords::no_vision`] gives,
    /// [`Error::Image`], [`Error::Vision`].
    pub fn see(&self, prompt: Prompt, cache_salt: u64) -> Result<Prompt, Error> {
        let seen = self.see_while(prompt, cache_salt, &|| true)?;
        Ok(seen.expect("nobody gives up"))
    }

    /// Does the same as [`Self::see`] while `is_wanted`, which is called before each image, returns true; `None` after it returned false.
    ///
    /// # Errors
    /// Returns the errors of [`Self::see`].
    pub fn see_while(
        &self,
        prompt: Prompt,
        cache_salt: u64,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Prompt>, Error> {
        if prompt.images.is_empty() {
            return Ok(Some(prompt));
        }
        let vision = (self.inner.vision.as_ref()).ok_or_else(|| self.words().no_vision())?;
        let (provided, maximum) = (prompt.tokens.len(), self.n_ctx());
        if provided > maximum {
            return Err(EngineError::ContextLimitExceeded { provided, maximum }.into());
        }
        let media = vision.media(&prompt, cache_salt, is_wanted)?;
        Ok(media.map(|media| Prompt { media, ..prompt }))
    }

    /// The name of its file or folder.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its tokenizer and chat template.
    pub fn words(&self) -> &ModelWords {
        &self.inner.words
    }

    /// Its engine, where tokens go in and tokens come out.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Where it computes, and why not on a GPU.
    pub fn device(&self) -> &LoadedDevice {
        &self.inner.device
    }

    /// The memory that it takes, where the load planned it.
    pub fn memory(&self) -> Option<&MemoryPlan> {
        self.inner.memory.as_ref()
    }

    /// Bytes of all that it takes, on the GPU and in main memory: [`Self::memory`], that of its [`Self::draft`], and its image encoder, whether that is loaded yet or not.
    pub fn taken_bytes(&self) -> u64 {
        let draft = self.draft().map(|draft| &draft.memory);
        let vision = self.inner.vision.as_ref().map(Vision::memory);
        bytes_of(self.memory().into_iter().chain(draft).chain(vision))
    }

    /// Returns the facts from its files, if this crate loaded it.
    pub fn facts(&self) -> Option<&ModelFacts> {
        self.inner.facts.as_ref()
    }

    /// Returns the draft model or MTP layer, if there is one; its memory is not a part of
    /// [`Self::memory`].
    pub fn draft(&self) -> Option<&DraftFacts> {
        self.inner.draft.as_ref()
    }

    /// Tokens of a context.
    pub fn n_ctx(&self) -> usize {
        self.engine().limits().n_ctx
    }

    /// Continues a text, and waits for the end.
    ///
    /// # Errors
    /// [`Error::Engine`] where the request is refused or fails, also for more than one sample: [`Self::samples`] takes them.
    pub fn complete(&self, prompt: &str, params: &TextParams) -> Result<Answer, Error> {
        single(self.stream(prompt, params)?)
    }

    /// Continues a text in `params.n` ways side by side, and waits for all of them.
    ///
    /// # Errors
    /// [`Error::Engine`] where the request is refused or a sample fails.
    pub fn samples(&self, prompt: &str, params: &TextParams) -> Result<Vec<Answer>, Error> {
        self.stream(prompt, params)?.read(|_| Ok(()))
    }

    /// Continues a text, piece by piece.
    ///
    /// # Errors
    /// [`Error::Engine`] where the request is refused; what happens later is in the stream.
    pub fn stream(&self, prompt: &str, params: &TextParams) -> Result<TextStream, Error> {
        self.generate(vec![self.words().encode_text(prompt, true)], params)
    }

    /// Answers a conversation, and waits for the end.
    ///
    /// # Errors
    /// Returns the errors of [`Self::complete`]; [`Error::NoTemplate`], or [`Error::Template`] if the template refuses the conversation.
    pub fn chat(&self, conversation: impl Into<Conversation>, params: &TextParams) -> Result<Answer, Error> {
        single(self.chat_stream(conversation, params)?)
    }

    /// Answers a conversation, piece by piece.
    ///
    /// # Errors
    /// Returns those errors of [`Self::chat`] that are known at once.
    pub fn chat_stream(
        &self,
        conversation: impl Into<Conversation>,
        params: &TextParams,
    ) -> Result<TextStream, Error> {
        let prompt = self.words().prompt(&conversation.into())?;
        let prompt = self.see(prompt, params.engine.cache_salt)?;
        let params = TextParams {
            constraint: (self.words()).held_to(&prompt, params.constraint.clone(), params.thinking_budget)?,
            engine: EngineParams {
                reader: prompt.reader,
                media: prompt.media,
                ..params.engine.clone()
            },
            ..params.clone()
        };
        self.generate(vec![prompt.tokens], &params)
    }

    /// One vector for each text, of length 1: what the network pools, or the mean of the final hidden states where it was not
    /// made for that.
    ///
    /// # Errors
    /// [`Error::Engine`] where a text is refused or fails; [`Error::MakesNoEmbeddings`].
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>, Error> {
        self.start_embedding(texts)?.collect()
    }

    /// Starts embedding texts.
    pub(crate) fn start_embedding(&self, texts: &[impl AsRef<str>]) -> Result<Embeddings, Error> {
        let inputs = texts
            .iter()
            .map(|text| self.words().encode_text(text.as_ref(), true));
        self.embed_tokens(inputs.collect(), None, 0)
    }

    /// Starts embedding inputs that are tokens already, all side by side.
    ///
    /// # Errors
    /// [`Error::Engine`] where an input is refused; those already started are then cancelled.
    /// [`Error::MakesNoEmbeddings`].
    pub fn embed_tokens(
        &self,
        inputs: Vec<Vec<u32>>,
        deadline: Option<Duration>,
        cache_salt: u64,
    ) -> Result<Embeddings, Error> {
        if self.words().pooled_output() == Some(PooledOutput::Rank) || self.words().has_decision_head() {
            return Err(Error::MakesNoEmbeddings);
        }
        Embeddings::start(self.engine(), inputs, deadline, cache_salt)
    }

    /// Says how well each document answers the query: a score between 0 and 1 for each.
    ///
    /// # Errors
    /// [`Error::RanksNothing`], or [`Error::Engine`] where a document is refused or fails.
    pub fn rerank(&self, query: &str, documents: &[impl AsRef<str>]) -> Result<Vec<f32>, Error> {
        self.start_ranking(query, documents)?.collect()
    }

    /// Starts scoring documents.
    pub(crate) fn start_ranking(&self, query: &str, documents: &[impl AsRef<str>]) -> Result<Scores, Error> {
        let pairs = documents.iter().map(|document| (query, document.as_ref()));
        self.rank_tokens(self.encode_pairs(pairs, None)?, None, 0)
    }

    /// Encodes pairs of texts for [`Self::rank_tokens`], as [`ModelWords::encode_pair`] does. A pair that exceeds the context ends the
    /// work, so that a long text with many others takes the memory of one pair.
    ///
    /// # Errors
    /// [`Error::Engine`] with [`EngineError::ContextLimitExceeded`], and the errors of [`ModelWords::encode_pair`].
    pub fn encode_pairs<'a>(
        &self,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
        instruction: Option<&str>,
    ) -> Result<Vec<Vec<u32>>, Error> {
        let maximum = self.n_ctx();
        let encode = |(first, second): (&str, &str)| {
            let input = self.words().encode_pair(first, second, instruction)?;
            let provided = input.len();
            if provided > maximum {
                return Err(EngineError::ContextLimitExceeded { provided, maximum }.into());
            }
            Ok(input)
        };
        pairs.into_iter().map(encode).collect()
    }

    /// Starts scoring inputs of [`ModelWords::encode_pair`], all side by side.
    ///
    /// # Errors
    /// Returns the errors of [`Self::rerank`]; inputs already started are cancelled.
    pub fn rank_tokens(
        &self,
        inputs: Vec<Vec<u32>>,
        deadline: Option<Duration>,
        cache_salt: u64,
    ) -> Result<Scores, Error> {
        let words = self.words().rank_words().ok_or(Error::RanksNothing)?;
        Scores::start(self.engine(), words, inputs, deadline, cache_salt)
    }

    /// Starts a generation for each prompt, tokens in and text out: what every other call here is made of. A constraint is
    /// compiled before, which takes a second at most, and no time where it was compiled not long ago.
    ///
    /// # Errors
    /// [`Error::UnknownAdapter`], [`Error::Constraint`] where the constraint cannot be enforced, [`Error::Engine`] where a prompt is refused; those already started are then cancelled.
    pub fn generate(&self, prompts: Vec<Vec<u32>>, params: &TextParams) -> Result<TextStream, Error> {
        let begun = Instant::now();
        let mut stop_tokens = if params.ignore_eos {
            Vec::new()
        } else {
            self.words().end_ids().to_vec()
        };
        let constraint = match &params.constraint {
            Some(constraint) => match self.words().compile_for(constraint, params.engine.client) {
                // Calls that may come without a constraint do so where the vocabulary can follow none.
                Err(Error::Constraint(ConstraintError::Vocabulary { .. })) if constraint.is_optional() => {
                    None
                }
                compiled => Some(constraint::source(
                    constraint,
                    compiled?,
                    stop_tokens.clone(),
                    params.min_tokens as usize,
                )),
            },
            None => None,
        };
        stop_tokens.extend(&params.stop_tokens);
        // A constraint counts itself: where it allows nothing but an end, the text ends.
        let min_tokens = match &constraint {
            Some(_) => 0,
            None => params.min_tokens as usize,
        };
        let generate = GenerateParams {
            sampling: params.sampling.clone(),
            max_tokens: params.max_tokens.map(|n| n as usize),
            stop_tokens,
            constraint,
            n_samples: params.n,
            // The time of compiling counts.
            deadline: params.deadline.map(|limit| limit.saturating_sub(begun.elapsed())),
            queue_timeout: params.queue_timeout,
            min_tokens,
            priority: params.priority,
            cache_salt: params.engine.cache_salt,
            adapter: self.adapter_id(params.adapter.as_deref())?,
            media: Arc::clone(&params.engine.media),
            reports_prefill: params.engine.reports_prefill,
            ..GenerateParams::default()
        };
        let mut generate = generate;
        let mut generations = Vec::with_capacity(prompts.len());
        let n_further = prompts.len().saturating_sub(1);
        let n_further_tokens = prompts.iter().skip(1).map(Vec::len).sum();
        for prompt in prompts {
            // The queue has room for a request or has none: all prompts come in with the first.
            let is_first = generations.is_empty();
            let submit = |prompt, params| {
                if is_first {
                    self.engine()
                        .submit_first(prompt, params, n_further, n_further_tokens)
                } else {
                    self.engine().submit_further(prompt, params)
                }
            };
            let generation = match submit(prompt.clone(), generate.clone()) {
                // Its scale has changed meanwhile, which gave the name another number; or the name is gone.
                Err(EngineError::UnknownAdapter { .. }) => {
                    generate.adapter = self.adapter_id(params.adapter.as_deref())?;
                    submit(prompt, generate.clone())
                }
                submitted => submitted,
            };
            generations.push(generation?);
            generate.media = Arc::new([]);
        }
        let tokenizer = self.words().tokenizer();
        let stream = TextStream::new(generations, params.n, tokenizer, &params.stops);
        Ok(match &params.engine.reader {
            Some(reader) => {
                let constraint = params.constraint.as_ref();
                let has_shape = constraint.is_some_and(Constraint::holds_text);
                stream.reading(
                    reader,
                    has_shape,
                    constraint.is_some_and(Constraint::may_be_calls),
                )
            }
            None => stream,
        })
    }
}

/// Waits for the answer of a request of one sample.
fn single(stream: TextStream) -> Result<Answer, Error> {
    check_single(&stream)?;
    let mut answers = stream.read::<Error>(|_| Ok(()))?;
    Ok(answers.pop().expect("one sample has one answer"))
}

/// Refuses a request of several samples where there is room for one answer.
pub(crate) fn check_single(stream: &TextStream) -> Result<(), Error> {
    match stream.n_samples() {
        1 => Ok(()),
        found => Err(Error::Engine(EngineError::SampleCount {
            found: found as u32,
            maximum: 1,
        })),
    }
}

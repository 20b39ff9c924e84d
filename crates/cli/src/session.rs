//! [`Session`]: a loaded model on its engine, with its tokenizer, for the commands that generate for one person.
//!
//! Separate from the commands because `run` and `chat` generate alike, and through the same [`TextStream`] as the
//! server. Invariant: text leaves here in whole characters, and no part of a stop string ever does.

use std::{path::Path, sync::Arc, time::Duration};

use serde_json::json;
use tokenmill_backend::{PAGE_TOKENS, SamplingParams};
use tokenmill_sched::{Engine, EngineConfig, FinishReason, Finished, GenerateParams};
use tokenmill_server::{TextEvent, TextStream};
use tokenmill_text::Tokenizer;
use tokio::runtime::{self, Runtime};

use crate::{
    failure::Failure,
    interrupt::Interrupt,
    load::{LoadArgs, load},
    model_source::{ChatFiles, ModelSource},
};

/// A loaded model on its engine.
#[derive(Debug)]
pub(crate) struct Session {
    /// Its name.
    pub(crate) name: String,
    /// What chats with it need.
    pub(crate) chat_files: ChatFiles,
    /// Its tokenizer.
    pub(crate) tokenizer: Arc<Tokenizer>,
    engine: Engine,
    /// Waits for the engine on this thread.
    runtime: Runtime,
}

/// What to generate.
#[derive(Debug, Clone)]
pub(crate) struct Request<'a> {
    /// Token ids of the prompt.
    pub(crate) prompt: &'a [u32],
    /// How tokens are chosen.
    pub(crate) sampling: SamplingParams,
    /// How many tokens at most; `None` continues until the context is full.
    pub(crate) max_tokens: Option<usize>,
    /// Strings that end a sample.
    pub(crate) stops: &'a [String],
    /// Samples, generated side by side.
    pub(crate) n_samples: u32,
}

/// A finished sample.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// Its text.
    pub(crate) text: String,
    /// The tokens of that text.
    pub(crate) ids: Vec<u32>,
    /// What it took.
    pub(crate) report: Report,
}

impl Session {
    /// Opens and loads a model, for `n_samples` samples side by side.
    ///
    /// # Errors
    /// A model that cannot be opened or loaded, or has no usable tokenizer.
    pub(crate) fn open(argument: &Path, args: &LoadArgs, n_samples: u32) -> Result<Self, Failure> {
        let source = ModelSource::find(argument)?;
        let model = source.open_model()?;
        let mut options = args.options(model.descriptor().n_ctx_train)?;
        let tokenizer = source.tokenizer_of(&model)?;
        let chat_files = source.chat_files(model.gguf(), &tokenizer)?;
        let n_samples = n_samples as usize;
        let n_ctx = options.n_ctx.unwrap_or(model.descriptor().n_ctx_train);
        options.max_batch_seqs = n_samples;
        options.max_logit_rows = n_samples;
        options.max_batch_tokens = options.max_batch_tokens.max(n_samples);
        // The system gives the memory of a page when it is first used.
        options.n_pages = Some(n_ctx.div_ceil(PAGE_TOKENS).saturating_mul(n_samples));
        let config = EngineConfig {
            max_running: n_samples,
            max_step_tokens: options.max_batch_tokens,
            ..EngineConfig::default()
        };
        let engine = Engine::start(load(&model, &options, &args.compute()?)?, config);
        let runtime = runtime::Builder::new_current_thread()
            .build()
            .map_err(|error| Failure::work(format!("cannot wait for events: {error}")))?;
        Ok(Self {
            name: source.name(),
            chat_files,
            tokenizer: Arc::new(tokenizer),
            engine,
            runtime,
        })
    }

    /// Positions of the context.
    pub(crate) fn n_ctx(&self) -> usize {
        self.engine.limits().n_ctx
    }

    /// Generates text behind a prompt and hands its pieces to `on_text` as they come, each with its sample. The answers
    /// are in the order of the samples.
    ///
    /// # Errors
    /// A prompt that is empty or too long before anything is computed; a step that fails; what `on_text` returns.
    pub(crate) fn generate(
        &self,
        request: &Request<'_>,
        interrupt: &Interrupt,
        on_text: &mut dyn FnMut(u32, &str) -> Result<(), Failure>,
    ) -> Result<Vec<Answer>, Failure> {
        let (n_prompt, n_ctx) = (request.prompt.len(), self.n_ctx());
        if n_prompt >= n_ctx && request.max_tokens != Some(0) {
            return Err(Failure::input(format!(
                "the prompt has {n_prompt} tokens, which leaves no room in a context of {n_ctx}"
            ))
            .hint("shorten the prompt, or give more context with -c"));
        }
        let params = GenerateParams {
            sampling: request.sampling.clone(),
            max_tokens: request.max_tokens,
            stop_tokens: [self.tokenizer.end_of_generation(), &self.chat_files.end_ids].concat(),
            n_samples: request.n_samples,
            ..GenerateParams::default()
        };
        let generation = self.engine.submit(request.prompt.to_vec(), params)?;
        interrupt.cancels(generation.canceller());
        let stream = TextStream::new(
            vec![generation],
            request.n_samples,
            &self.tokenizer,
            request.stops,
        );
        self.runtime.block_on(read(
            stream,
            request.n_samples as usize,
            request.max_tokens,
            on_text,
        ))
    }
}

/// Reads a stream to its end.
async fn read(
    mut stream: TextStream,
    n_samples: usize,
    max_tokens: Option<usize>,
    on_text: &mut dyn FnMut(u32, &str) -> Result<(), Failure>,
) -> Result<Vec<Answer>, Failure> {
    let mut samples = vec![(String::new(), Vec::new(), None); n_samples];
    while let Some(event) = stream.next().await {
        match event {
            TextEvent::Delta(delta) => {
                let (text, ids, _) = &mut samples[delta.sample as usize];
                text.push_str(&delta.text);
                ids.extend(delta.tokens.iter().map(|token| token.id));
                if !delta.text.is_empty() {
                    on_text(delta.sample, &delta.text)?;
                }
            }
            TextEvent::Finished(end) => {
                samples[end.sample as usize].2 = Some(Report::new(&end.finished, max_tokens));
            }
            TextEvent::Failed { error, .. } => return Err(error.into()),
        }
    }
    let answers = samples.into_iter().map(|(text, ids, report)| Answer {
        text,
        ids,
        report: report.expect("a sample that did not fail has finished"),
    });
    Ok(answers.collect())
}

/// What a sample took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    /// Why it ended.
    pub(crate) finish: FinishReason,
    /// How many tokens it might have had, where that number ended it; else the context did.
    pub(crate) cut_at: Option<usize>,
    /// Tokens of the prompt that were computed.
    n_prompt: usize,
    /// Tokens of the prompt that were still stored.
    n_cached: usize,
    /// Tokens generated.
    n_generated: usize,
    /// Time until the first token.
    prompt_time: Duration,
    /// Time for the tokens after the first.
    generation_time: Duration,
}

impl Report {
    fn new(finished: &Finished, max_tokens: Option<usize>) -> Self {
        let (usage, timings) = (&finished.usage, &finished.timings);
        Self {
            finish: finished.reason,
            cut_at: max_tokens.filter(|&max| usage.completion_tokens >= max),
            n_prompt: usage.prompt_tokens - usage.cached_tokens,
            n_cached: usage.cached_tokens,
            n_generated: usage.completion_tokens,
            prompt_time: timings.first_token,
            generation_time: timings.total.saturating_sub(timings.first_token),
        }
    }

    /// Tokens of prompt and answer: what the context holds behind it.
    pub(crate) fn n_tokens(&self) -> usize {
        self.n_prompt + self.n_cached + self.n_generated
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let cached = match self.n_cached {
            0 => String::new(),
            n => format!(" ({n} more stored)"),
        };
        let reason = match (self.finish, self.cut_at) {
            (FinishReason::Stop, _) => "",
            (FinishReason::Length, Some(_)) => ", cut at the limit of -n",
            (FinishReason::Length, None) => ", cut where the context ends; -c gives more",
            (FinishReason::Cancelled, _) => ", stopped",
        };
        let prompt = n_tokens(self.n_prompt);
        if self.n_generated == 0 && self.prompt_time.is_zero() {
            // An end that the model chose has no time of a first token, but the prompt was computed for it.
            let what = match self.finish {
                FinishReason::Stop => "the model ended at once",
                FinishReason::Length | FinishReason::Cancelled => "nothing was computed",
            };
            return format!("[prompt {prompt}{cached}; {what}{reason}]");
        }
        format!(
            "[prompt {prompt}{cached}, {} tokens/s; answer {}, {} tokens/s; first after {:.0} ms{reason}]",
            rate(self.n_prompt, self.prompt_time),
            n_tokens(self.n_generated),
            rate(self.n_generated.saturating_sub(1), self.generation_time),
            self.prompt_time.as_secs_f64() * 1e3,
        )
    }

    /// The same for programs.
    pub(crate) fn to_json(self) -> serde_json::Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let per_second =
            |n: usize, time: Duration| (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64());
        json!({
            "prompt_n": self.n_prompt,
            "cache_n": self.n_cached,
            "prompt_ms": ms(self.prompt_time),
            "prompt_per_second": per_second(self.n_prompt, self.prompt_time),
            "predicted_n": self.n_generated,
            "predicted_ms": ms(self.generation_time),
            "predicted_per_second": per_second(self.n_generated.saturating_sub(1), self.generation_time),
        })
    }
}

/// One line for people on samples that were generated side by side.
pub(crate) fn line_of_all(reports: &[Report]) -> String {
    let n_generated: usize = reports.iter().map(|report| report.n_generated).sum();
    let first = reports.iter().map(|report| report.prompt_time).min();
    let last = (reports.iter())
        .map(|report| report.prompt_time + report.generation_time)
        .max();
    let span = last.unwrap_or_default().saturating_sub(first.unwrap_or_default());
    format!(
        "[{} samples, {n_generated} tokens, {} tokens/s together; first after {:.0} ms]",
        reports.len(),
        rate(n_generated.saturating_sub(reports.len()), span),
        first.unwrap_or_default().as_secs_f64() * 1e3,
    )
}

/// Why a sample ended, as JSON names it.
pub(crate) fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
    }
}

/// A number of tokens with its noun.
fn n_tokens(n: usize) -> String {
    format!("{n} {}", if n == 1 { "token" } else { "tokens" })
}

/// Tokens in a second; a dash where there were none.
fn rate(n: usize, time: Duration) -> String {
    if n == 0 || time.is_zero() {
        return "-".to_owned();
    }
    format!("{:.1}", n as f64 / time.as_secs_f64())
}

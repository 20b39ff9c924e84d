//! One person's generations: Ctrl-C ends them, pieces are shown as they arrive, and a line reports their
//! tokens and times.
//!
//! `run` and `chat` share it. Invariant: text is shown in whole characters, and no part of a stop string is
//! ever shown.

use std::{path::Path, time::Duration};

use serde_json::json;
use tokenmill::{Answer, Delta, KvCache, Model, TextParams, text::Prompt};
use tokenmill_sched::FinishReason;

use crate::{
    adapters::AdapterArgs,
    context_shift::ContextShiftArgs,
    failure::Failure,
    interrupt::Interrupt,
    load::{LoadArgs, load},
    numbers::counted,
    speculation::SpeculationArgs,
    template::TemplateArgs,
    vision::VisionArgs,
};

/// Loads a model for `n_samples` samples side by side, each with a context of its own.
///
/// # Errors
/// A model that cannot be opened or loaded, or has no usable tokenizer.
pub(crate) fn open(
    path: &Path,
    args: &LoadArgs,
    speculation: &SpeculationArgs,
    adapters: &AdapterArgs,
    context_shift: &ContextShiftArgs,
    n_samples: u32,
    vision: &VisionArgs,
    template: &TemplateArgs,
) -> Result<Model, Failure> {
    let mut options = args.options()?;
    options.n_seqs = n_samples as usize;
    options.kv_cache = KvCache::Contexts(n_samples as usize);
    template.add_to(&mut options)?;
    options.projector = vision.projector();
    options.needs_images = vision.shows_images();
    speculation.add_to(&mut options, &args.fetch)?;
    adapters.add_to(&mut options);
    context_shift.add_to(&mut options);
    load(path, &options)
}

/// Generates text after a prompt and passes its pieces to `on_piece` as they arrive. Returns the answers in
/// the order of the samples.
///
/// # Errors
/// Fails before anything is computed if the prompt is empty or too long; also fails if a step fails or
/// `on_piece` returns an error.
pub(crate) fn generate(
    model: &Model,
    prompt: &[u32],
    params: &TextParams,
    interrupt: &Interrupt,
    on_piece: &mut dyn FnMut(&Delta) -> Result<(), Failure>,
) -> Result<Vec<Answer>, Failure> {
    let (n_prompt, n_ctx) = (prompt.len(), model.n_ctx());
    if n_prompt >= n_ctx && params.max_tokens != Some(0) {
        return Err(Failure::input(format!(
            "the prompt has {n_prompt} tokens, which leaves no room in a context of {n_ctx}"
        ))
        .hint("shorten the prompt, or give more context with -c"));
    }
    let stream = model.generate(vec![prompt.to_vec()], params)?;
    for canceller in stream.cancellers() {
        interrupt.cancels(canceller);
    }
    stream.read(on_piece)
}

/// The tokens and times of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    /// The reason why it ended.
    pub(crate) finish: FinishReason,
    /// The token limit, if it ended the sample; else the context ended it.
    pub(crate) cut_at: Option<usize>,
    /// Tokens of the prompt that were computed.
    n_prompt: usize,
    /// Tokens of the prompt that were still stored.
    n_cached: usize,
    /// Tokens that were dropped where the context was full.
    n_dropped: usize,
    /// Tokens generated.
    n_generated: usize,
    /// Draft tokens, and the accepted ones among them.
    n_drafted: usize,
    n_accepted: usize,
    /// Time that images took before the prompt.
    image_time: Duration,
    /// Time from then until the first token.
    prompt_time: Duration,
    /// Time for the tokens after the first.
    generation_time: Duration,
}

impl Report {
    /// Creates the report of an answer to a request of at most `max_tokens` tokens.
    pub(crate) fn new(answer: &Answer, max_tokens: Option<u32>) -> Self {
        let (usage, timings) = (&answer.usage, &answer.timings);
        let max_tokens = max_tokens.map(|max| max as usize);
        Self {
            finish: answer.finish,
            cut_at: max_tokens.filter(|&max| usage.completion_tokens >= max),
            n_prompt: usage.prompt_tokens - usage.cached_tokens,
            n_cached: usage.cached_tokens,
            n_dropped: usage.dropped_tokens,
            n_generated: usage.completion_tokens,
            n_drafted: usage.drafted_tokens,
            n_accepted: usage.accepted_tokens,
            image_time: Duration::ZERO,
            prompt_time: timings.first_token,
            generation_time: timings.total.saturating_sub(timings.first_token),
        }
    }

    /// Adds the time that the images of a prompt took; nothing changes if it has none.
    pub(crate) fn after_images(self, image_time: Duration, prompt: &Prompt) -> Self {
        if prompt.media.is_empty() {
            return self;
        }
        Self { image_time, ..self }
    }

    /// Returns the tokens of prompt and answer, which the context then holds.
    pub(crate) fn n_tokens(&self) -> usize {
        self.n_prompt + self.n_cached + self.n_generated - self.n_dropped
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let cached = match self.n_cached {
            0 => String::new(),
            n => format!(" ({n} more from the prefix cache)"),
        };
        let reason = match (self.finish, self.cut_at) {
            (FinishReason::Stop, _) => "",
            (FinishReason::Length, Some(_)) => ", cut at the limit of -n",
            (FinishReason::Length, None) => ", cut where the context ends; -c gives more",
            (FinishReason::Cancelled, _) => ", stopped",
        };
        let reason = match self.n_dropped {
            0 => reason.to_owned(),
            n => format!("{reason}; the context was full, {} dropped", n_tokens(n)),
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
        // Tokens after a stop string may have been drafted too; they are not part of the answer.
        let guessed = match self.n_accepted.min(self.n_generated) {
            0 => String::new(),
            n => format!(" ({n} by speculation)"),
        };
        format!(
            "[prompt {prompt}{cached}{}; answer {}{guessed}{}; first after {:.0} ms{reason}]",
            rate(self.n_prompt, self.prompt_time),
            n_tokens(self.n_generated),
            rate(self.n_generated.saturating_sub(1), self.generation_time),
            (self.image_time + self.prompt_time).as_secs_f64() * 1e3,
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
            "image_ms": (!self.image_time.is_zero()).then(|| ms(self.image_time)),
            "prompt_ms": ms(self.prompt_time),
            "prompt_per_second": per_second(self.n_prompt, self.prompt_time),
            "predicted_n": self.n_generated,
            "dropped_n": self.n_dropped,
            "draft_n": self.n_drafted,
            "draft_n_accepted": self.n_accepted,
            "predicted_ms": ms(self.generation_time),
            "predicted_per_second": per_second(self.n_generated.saturating_sub(1), self.generation_time),
        })
    }
}

/// One line for people on samples that were generated side by side.
pub(crate) fn line_of_all(reports: &[Report]) -> String {
    let n_generated: usize = reports.iter().map(|report| report.n_generated).sum();
    let first = reports.iter().map(|report| report.prompt_time).min();
    let image_time = reports.first().map_or(Duration::ZERO, |report| report.image_time);
    let last = (reports.iter())
        .map(|report| report.prompt_time + report.generation_time)
        .max();
    let span = last.unwrap_or_default().saturating_sub(first.unwrap_or_default());
    format!(
        "[{} samples, {n_generated} tokens{} together; first after {:.0} ms]",
        reports.len(),
        rate(n_generated.saturating_sub(reports.len()), span),
        (image_time + first.unwrap_or_default()).as_secs_f64() * 1e3,
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
    counted(n, "token")
}

/// Returns the tokens per second, after a comma; empty if there were none.
fn rate(n: usize, time: Duration) -> String {
    if n == 0 || time.is_zero() {
        return String::new();
    }
    format!(", {:.1} tokens/s", n as f64 / time.as_secs_f64())
}

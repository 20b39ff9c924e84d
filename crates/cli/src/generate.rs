//! [`Generator`]: the one loop that turns a prompt into tokens.
//!
//! It drives an [`Executor`] directly, for one sequence. Invariant: `cached` are the tokens whose keys and values are in
//! the store, in order; a new prompt reuses what it has in common with them, so a chat does not read its past twice.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokenmill_model::{
    Executor, ForwardBatch, PAGE_TOKENS, RowError, RowOutput, SampleRow, SamplingParams, StepError,
    StepOutput, TokenSource,
};

use crate::failure::Failure;

/// Generates for one sequence.
pub(crate) struct Generator {
    executor: Box<dyn Executor + Send>,
    batch: ForwardBatch,
    output: StepOutput,
    cached: Vec<u32>,
    pages: Vec<u32>,
}

/// What to generate.
pub(crate) struct Request<'a> {
    /// Token ids of the prompt.
    pub(crate) prompt: &'a [u32],
    /// How tokens are chosen.
    pub(crate) params: Arc<SamplingParams>,
    /// How many tokens at most; `None` goes on until the context is full.
    pub(crate) max_tokens: Option<usize>,
}

/// Whether to go on after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Generate the next.
    Continue,
    /// The text is complete.
    Stop,
    /// The user wants no more.
    Cancel,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishReason {
    /// A token or a text that ends it.
    Stop,
    /// The number of tokens or the context.
    Length,
    /// The user.
    Cancelled,
}

impl FinishReason {
    /// Its name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a generation took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    /// Why it ended.
    pub(crate) finish: FinishReason,
    /// Tokens of the prompt that were computed.
    pub(crate) n_prompt: usize,
    /// Tokens of the prompt that were still stored.
    pub(crate) n_cached: usize,
    /// Tokens generated, one that ends the text included.
    pub(crate) n_generated: usize,
    /// Time until the first token.
    pub(crate) prompt_time: Duration,
    /// Time for the tokens after the first.
    pub(crate) generation_time: Duration,
}

impl Generator {
    /// Takes an executor whose store is empty.
    pub(crate) fn new(executor: Box<dyn Executor + Send>) -> Self {
        let pages = (0..executor.limits().n_pages as u32).collect();
        Self {
            executor,
            batch: ForwardBatch::default(),
            output: StepOutput::default(),
            cached: Vec::new(),
            pages,
        }
    }

    /// Positions of the context.
    pub(crate) fn n_ctx(&self) -> usize {
        self.executor.limits().n_ctx
    }

    /// Generates, and hands each token to `on_token` as it comes, those that end the text included.
    ///
    /// # Errors
    /// A prompt that is empty or too long before anything is computed; a step that fails; what `on_token` returns.
    pub(crate) fn generate(
        &mut self,
        request: &Request<'_>,
        on_token: &mut dyn FnMut(u32) -> Result<Next, Failure>,
    ) -> Result<Report, Failure> {
        let (n_prompt, n_ctx) = (request.prompt.len(), self.n_ctx());
        if n_prompt == 0 {
            return Err(Failure::input("the prompt is empty").hint("there must be at least one token"));
        }
        if n_prompt >= n_ctx && request.max_tokens != Some(0) {
            return Err(Failure::input(format!(
                "the prompt has {n_prompt} tokens, which leaves no room in a context of {n_ctx}"
            ))
            .hint("shorten the prompt, or give more context with -c"));
        }
        // The last token is always computed, since its logits are not stored.
        let n_common = self
            .cached
            .iter()
            .zip(request.prompt)
            .take_while(|(a, b)| a == b)
            .count();
        let n_cached = n_common.min(n_prompt - 1);
        self.cached.truncate(n_cached);
        let mut report = Report {
            finish: FinishReason::Length,
            n_prompt: n_prompt - n_cached,
            n_cached,
            n_generated: 0,
            prompt_time: Duration::ZERO,
            generation_time: Duration::ZERO,
        };
        let max_tokens = request
            .max_tokens
            .unwrap_or(usize::MAX)
            .min(n_ctx.saturating_sub(n_prompt));
        if max_tokens == 0 {
            return Ok(report);
        }
        let started = Instant::now();
        let mut token = self.step(&request.prompt[n_cached..], &request.params)?;
        report.prompt_time = started.elapsed();
        let first_token = Instant::now();
        loop {
            report.n_generated += 1;
            match on_token(token)? {
                Next::Continue => {}
                Next::Stop => {
                    report.finish = FinishReason::Stop;
                    break;
                }
                Next::Cancel => {
                    report.finish = FinishReason::Cancelled;
                    break;
                }
            }
            if report.n_generated == max_tokens {
                break;
            }
            token = self.step(&[token], &request.params)?;
        }
        report.generation_time = first_token.elapsed();
        Ok(report)
    }

    /// Computes `tokens` behind those that are stored and samples the next.
    fn step(&mut self, tokens: &[u32], params: &Arc<SamplingParams>) -> Result<u32, Failure> {
        let mut chunks = tokens.chunks(self.executor.limits().max_batch_tokens).peekable();
        while let Some(chunk) = chunks.next() {
            self.push(chunk);
            if chunks.peek().is_none() {
                let history_len = params.history_len().min(self.cached.len());
                let history = &self.cached[self.cached.len() - history_len..];
                self.batch.history.extend_from_slice(history);
                self.batch.want_last(RowOutput::Sample(SampleRow {
                    params: Arc::clone(params),
                    history: 0..history_len as u32,
                    mask_start: None,
                }));
            }
            self.run()?;
        }
        let sampled = self.output.sampled.first().copied().flatten();
        Ok(sampled.unwrap_or(Err(RowError::NothingAllowed))?.id)
    }

    /// Begins a batch with `tokens` behind those that are stored.
    fn push(&mut self, tokens: &[u32]) {
        let first_position = self.cached.len();
        self.cached.extend_from_slice(tokens);
        self.batch.clear();
        self.batch.push_sequence(
            tokens.iter().map(|&id| TokenSource::Id(id)),
            first_position as u32,
            &self.pages[..self.cached.len().div_ceil(PAGE_TOKENS)],
        );
    }

    fn run(&mut self) -> Result<(), StepError> {
        let ticket = self.executor.submit(&self.batch)?;
        self.executor.wait(ticket, &mut self.output)
    }

    /// Forgets what is stored.
    pub(crate) fn clear(&mut self) {
        self.cached.clear();
    }

    /// Computes `tokens` behind those that are stored, without sampling; gives the logits of the rows asked for,
    /// counted from the first of `tokens`. The caller keeps to the executor's limits.
    ///
    /// # Errors
    /// A step that fails.
    pub(crate) fn logits(
        &mut self,
        tokens: &[u32],
        rows: impl IntoIterator<Item = usize>,
    ) -> Result<&[f32], Failure> {
        self.push(tokens);
        for row in rows {
            self.batch.logit_rows.push(row as u32);
            self.batch.outputs.push(RowOutput::Logits);
        }
        self.run()?;
        Ok(&self.output.logits)
    }
}

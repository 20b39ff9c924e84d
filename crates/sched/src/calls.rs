//! Blocking calls: `generate`, `batch_generate`, `generate_streaming`, `forward_batch` and others.
//!
//! Each is a few lines over [`Engine::submit`], so there is one generation loop and one sampler for all
//! calls. Invariant: the output of a call is its prompt followed by the generated tokens, without stop
//! tokens.

use std::collections::VecDeque;

use crate::{
    engine::{Engine, generation::Generation, step_times::Throughput},
    error::EngineError,
    params::{ForwardParams, ForwardRows, GenerateParams},
    queue::event::{Event, FinishReason, Timings, Token, Usage},
};

/// A finished sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The prompt, then the generated tokens.
    pub tokens: Vec<u32>,
    /// Generated tokens, with as many log-probabilities as were requested.
    pub generated: Vec<Token>,
    /// The reason why it ended.
    pub reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Time measurements.
    pub timings: Timings,
}

impl Engine {
    /// Generates from one prompt and waits for the end.
    ///
    /// # Errors
    /// The reason why the request was refused or failed. More than one sample is refused; see
    /// [`Self::generate_samples`].
    pub fn generate(&self, prompt: &[u32], params: &GenerateParams) -> Result<Output, EngineError> {
        check_single(params)?;
        let [output] = self
            .collect(prompt, params)?
            .try_into()
            .expect("one sample was asked for");
        output
    }

    /// Generates `params.n_samples` continuations of one prompt from one prefill and waits for all of them.
    ///
    /// # Errors
    /// The reason why the request was refused. Each sample may still fail separately.
    pub fn generate_samples(
        &self,
        prompt: &[u32],
        params: &GenerateParams,
    ) -> Result<Vec<Result<Output, EngineError>>, EngineError> {
        self.collect(prompt, params)
    }

    /// Generates from all prompts in one batch. The results are in the order of the prompts; a failing prompt
    /// does not affect the others.
    ///
    /// # Errors
    /// [`EngineError::EmptyBatch`] without a prompt, or the error of an invalid prompt before any is started.
    /// Later failures are in the result of their prompt.
    pub fn batch_generate(
        &self,
        prompts: &[Vec<u32>],
        params: &GenerateParams,
    ) -> Result<Vec<Result<Output, EngineError>>, EngineError> {
        if prompts.is_empty() {
            return Err(EngineError::EmptyBatch);
        }
        check_single(params)?;
        for prompt in prompts {
            self.check(prompt, params)?;
        }
        let mut outputs = Vec::with_capacity(prompts.len());
        let mut running = VecDeque::new();
        for prompt in prompts {
            // If the queue is full, the oldest generation of this call makes room by finishing.
            let generation = loop {
                // The buffer is unbounded: results are collected one after the other, and no generation
                // should wait for another.
                match self.submit_buffered(prompt.clone(), params.clone(), usize::MAX) {
                    Err(EngineError::QueueFull { .. } | EngineError::QueueTokensFull { .. })
                        if !running.is_empty() =>
                    {
                        outputs.extend(running.pop_front().map(gather_single));
                    }
                    submitted => break submitted,
                }
            };
            running.push_back((&prompt[..], generation));
        }
        outputs.extend(running.into_iter().map(gather_single));
        Ok(outputs)
    }

    /// Generates from one prompt and hands over each token at once. If `on_token` returns `false`, generation
    /// ends after exactly that token, as [`FinishReason::Cancelled`]. An empty prompt gives an empty output.
    ///
    /// # Errors
    /// The reason why the request was refused or failed.
    pub fn generate_streaming(
        &self,
        prompt: &[u32],
        params: &GenerateParams,
        mut on_token: impl FnMut(u32) -> bool,
    ) -> Result<Output, EngineError> {
        if prompt.is_empty() {
            return Ok(Output {
                tokens: Vec::new(),
                generated: Vec::new(),
                reason: FinishReason::Length,
                usage: Usage::default(),
                timings: Timings::default(),
            });
        }
        check_single(params)?;
        let mut generation = self.submit(prompt.to_vec(), params.clone())?;
        let mut tokens = prompt.to_vec();
        let mut generated = Vec::new();
        let mut is_wanted = true;
        while let Some(event) = generation.next() {
            match event {
                Event::Token(token) => {
                    tokens.push(token.id);
                    is_wanted = on_token(token.id);
                    generated.push(token);
                    if !is_wanted {
                        generation.stop(0);
                    }
                }
                Event::Finished(finished) => {
                    return Ok(Output {
                        tokens,
                        generated,
                        reason: if is_wanted {
                            finished.reason
                        } else {
                            FinishReason::Cancelled
                        },
                        usage: finished.usage,
                        timings: finished.timings,
                    });
                }
                Event::Failed { error, .. } => return Err(error),
                Event::Prefill(_) | Event::Rows(_) => {}
            }
        }
        Err(EngineError::Stopped)
    }

    /// Returns the logits of all positions of `tokens`, `[n_tokens, n_vocab]`.
    ///
    /// # Errors
    /// The reason why the request was refused or failed.
    pub fn forward_batch(&self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        self.read_rows(tokens, ForwardParams::new(ForwardRows::Logits, 0))
    }

    /// Fills KV pages with `prompt`, which later requests find in the prefix cache, and returns the logits of
    /// its last position, `[n_vocab]`.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], or the reason why the request was refused or failed.
    pub fn prefill_batch(&self, prompt: &[u32]) -> Result<Vec<f32>, EngineError> {
        let last = prompt.len().saturating_sub(1);
        self.read_rows(prompt, ForwardParams::new(ForwardRows::Logits, last))
    }

    /// Returns the hidden states of all positions of `tokens` after the final norm, `[n_tokens, n_embd]`.
    ///
    /// # Errors
    /// The reason why the request was refused or failed.
    pub fn hidden_states(&self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        self.read_rows(tokens, ForwardParams::new(ForwardRows::Hidden, 0))
    }

    fn read_rows(&self, tokens: &[u32], params: ForwardParams) -> Result<Vec<f32>, EngineError> {
        let mut values = Vec::new();
        for event in self.submit_forward(tokens.to_vec(), params)? {
            match event {
                Event::Rows(rows) if values.is_empty() => values = rows.values,
                Event::Rows(rows) => values.extend_from_slice(&rows.values),
                Event::Failed { error, .. } => return Err(error),
                Event::Prefill(_) | Event::Token(_) | Event::Finished(_) => {}
            }
        }
        Ok(values)
    }

    /// Measures the decoding speed at each batch size in `batch_sizes` by generating `n_tokens` tokens per
    /// sequence; [`Self::throughput`] uses the measurements. Nothing else should run meanwhile.
    ///
    /// # Errors
    /// The reason why one of the requests was refused or failed.
    pub fn calibrate(&self, batch_sizes: &[usize], n_tokens: usize) -> Result<Vec<Throughput>, EngineError> {
        let params = GenerateParams {
            max_tokens: Some(n_tokens.max(2)),
            uses_prefix_cache: false,
            ..GenerateParams::default()
        };
        for &n_sequences in batch_sizes {
            let prompts: Vec<Vec<u32>> = (0..n_sequences).map(|seq| self.calibration_prompt(seq)).collect();
            for output in self.batch_generate(&prompts, &params)? {
                output?;
            }
        }
        batch_sizes
            .iter()
            .map(|&n_sequences| self.throughput(n_sequences))
            .collect()
    }

    fn calibration_prompt(&self, seq: usize) -> Vec<u32> {
        let n_vocab = self.limits().n_vocab.max(1) as u32;
        vec![seq as u32 % n_vocab]
    }

    /// Returns the throughput of decoding `n_sequences` in one batch, from steps measured on this machine by
    /// [`Self::calibrate`] and by all later traffic.
    ///
    /// # Errors
    /// [`EngineError::NotWarmedUp`] if no decoding step has run yet.
    pub fn throughput(&self, n_sequences: usize) -> Result<Throughput, EngineError> {
        self.board()
            .with_step_times(|times| times.throughput(n_sequences))
            .ok_or(EngineError::NotWarmedUp)
    }

    fn collect(
        &self,
        prompt: &[u32],
        params: &GenerateParams,
    ) -> Result<Vec<Result<Output, EngineError>>, EngineError> {
        let generation = self.submit(prompt.to_vec(), params.clone())?;
        Ok(gather(prompt, generation, params.n_samples as usize))
    }
}

fn check_single(params: &GenerateParams) -> Result<(), EngineError> {
    match params.n_samples {
        1 => Ok(()),
        found => Err(EngineError::SampleCount { found, maximum: 1 }),
    }
}

/// Waits for a single-sample request, if it was accepted.
fn gather_single(
    (prompt, generation): (&[u32], Result<Generation, EngineError>),
) -> Result<Output, EngineError> {
    let [output] = gather(prompt, generation?, 1)
        .try_into()
        .expect("one sample was asked for");
    output
}

/// Waits for all samples of a request.
fn gather(prompt: &[u32], generation: Generation, n_samples: usize) -> Vec<Result<Output, EngineError>> {
    let mut generated = vec![Vec::new(); n_samples];
    let mut outputs = vec![Err(EngineError::Stopped); n_samples];
    for event in generation {
        match event {
            Event::Token(token) => generated[token.sample as usize].push(token),
            Event::Finished(finished) => {
                let generated = std::mem::take(&mut generated[finished.sample as usize]);
                let ids = generated.iter().map(|token: &Token| token.id);
                outputs[finished.sample as usize] = Ok(Output {
                    tokens: prompt.iter().copied().chain(ids).collect(),
                    generated,
                    reason: finished.reason,
                    usage: finished.usage,
                    timings: finished.timings,
                });
            }
            Event::Failed { sample, error } => outputs[sample as usize] = Err(error),
            Event::Prefill(_) | Event::Rows(_) => {}
        }
    }
    outputs
}

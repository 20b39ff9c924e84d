//! [`HostStep`]: the values of a step, for backends with host memory.
//!
//! All of them resolve token ids, pick rows, sample tokens and keep results until they are read. Invariant:
//! once the buffers have grown to the largest batch, nothing is allocated.

use std::collections::VecDeque;

use crate::{
    AdapterRuns, ForwardBatch, RowError, RowMask, RowOutput, SampleRequest, SampledToken, Sampler,
    StepOutput, StepShape, TokenLogprob, TokenSource,
};

/// Returns the token that a device picked for a row, and appends the row's likeliest tokens if it reports
/// them.
pub type PickRow<'a> = dyn FnMut(usize, &mut Vec<TokenLogprob>) -> Result<SampledToken, RowError> + 'a;

/// The values of the current step, the sampler, and the unread results.
#[derive(Debug, Default)]
pub struct HostStep {
    batch: ForwardBatch,
    tokens: Vec<u32>,
    output_rows: Vec<u32>,
    logits_of_outputs: Vec<u32>,
    adapter_runs: AdapterRuns,
    sampler: RowSampler,
    /// Tokens sampled by the previous step, to which this step's tokens may refer.
    sampled: Vec<u32>,
    unread: VecDeque<StepOutput>,
    spare: Vec<StepOutput>,
}

/// Samples rows of a step; each thread that works on a step has its own.
#[derive(Debug, Default)]
pub struct RowSampler {
    sampler: Sampler,
    /// Tokens that were unknown when the history was written.
    newest: Vec<u32>,
    /// A mask that arrived while the step ran.
    late_words: Vec<u32>,
}

impl RowSampler {
    /// Picks the token of a logit row, `logits: [n_vocab]`, and appends its likeliest tokens to `top` if the
    /// row reports them. The result depends only on the row.
    ///
    /// # Errors
    /// Returns the errors of [`Sampler::sample`].
    ///
    /// # Panics
    /// If the row does not sample.
    pub fn sample(
        &mut self,
        step: &HostStep,
        row: usize,
        logits: &[f32],
        top: &mut Vec<TokenLogprob>,
    ) -> Result<SampledToken, RowError> {
        let batch = &step.batch;
        let RowOutput::Sample(sample) = &batch.outputs[row] else {
            panic!("logit row {row} does not sample");
        };
        let token_idx = batch.logit_rows[row] as usize;
        let seq_idx = (batch.seq_starts).partition_point(|&start| start as usize <= token_idx) - 1;
        self.newest.clear();
        for earlier_idx in batch.seq_starts[seq_idx] as usize..=token_idx {
            if let TokenSource::SampledRow(_) = batch.tokens[earlier_idx] {
                self.newest.push(step.tokens[earlier_idx]);
            }
        }
        let mask = match &sample.mask {
            RowMask::Any => None,
            RowMask::Words(start) => {
                let start = *start as usize;
                Some(&batch.mask_words[start..start + logits.len().div_ceil(32)])
            }
            RowMask::Late(mask) => {
                if !mask.wait(&mut self.late_words) {
                    return Err(RowError::NothingAllowed);
                }
                Some(&self.late_words[..])
            }
        };
        let request = SampleRequest {
            params: &sample.params,
            history: &batch.history[sample.history.start as usize..sample.history.end as usize],
            newest: &self.newest,
            n_prompt: sample.n_prompt as usize,
            mask,
            position: batch.positions[token_idx] + 1,
        };
        self.sampler.sample(logits, &request, top)
    }
}

impl HostStep {
    /// Takes a step's values. Implements [`Backend::begin_step`](crate::Backend::begin_step).
    pub fn begin(&mut self, batch: &ForwardBatch) -> StepShape {
        self.batch.copy_from(batch);
        self.tokens.clear();
        self.tokens.extend(batch.tokens.iter().map(|token| match *token {
            TokenSource::Id(id) => id,
            TokenSource::SampledRow(row) => self.sampled[row as usize],
            // Looked up like any token, and overwritten by `take_input_rows`.
            TokenSource::Row(_) => 0,
        }));
        self.output_rows.clear();
        self.output_rows.extend_from_slice(&batch.logit_rows);
        self.output_rows.extend_from_slice(&batch.hidden_rows);
        self.output_rows.sort_unstable();
        self.output_rows.dedup();
        self.logits_of_outputs.clear();
        let output_of = |row| {
            self.output_rows
                .binary_search(row)
                .expect("a logit row is an output")
        };
        self.logits_of_outputs
            .extend(batch.logit_rows.iter().map(|row| output_of(row) as u32));
        self.adapter_runs.set(batch, &self.output_rows);
        StepShape::of(batch)
    }

    /// Returns whether rows must be sampled in order, because a draw affects the next draw of its sequence.
    pub fn samples_in_order(&self) -> bool {
        let mut outputs = self.batch.outputs.iter();
        outputs.any(|output| matches!(output, RowOutput::Sample(sample) if sample.params.mirostat.is_some()))
    }

    /// Writes the non-token inputs over the embeddings looked up for them, `rows: [T, width]`.
    pub fn take_input_rows(&self, width: usize, rows: &mut [f32]) {
        self.for_input_rows(0, width, rows, |out, row| out.copy_from_slice(row));
    }

    /// Adds the parts of non-token inputs to the stream after a layer, `rows: [T, width]`. Implements
    /// [`Backend::add_input_rows`](crate::Backend::add_input_rows).
    pub fn add_input_rows(&self, part: usize, width: usize, rows: &mut [f32]) {
        self.for_input_rows(part, width, rows, |out, row| {
            for (out, value) in out.iter_mut().zip(row) {
                *out += value;
            }
        });
    }

    /// Calls `change` with each row that has a non-token input, and a part of that input.
    fn for_input_rows(
        &self,
        part: usize,
        width: usize,
        rows: &mut [f32],
        change: impl Fn(&mut [f32], &[f32]),
    ) {
        if self.batch.input_rows.is_empty() {
            return;
        }
        let input_width = self.batch.input_width;
        for (token, out) in self.batch.tokens.iter().zip(rows.chunks_exact_mut(width)) {
            if let TokenSource::Row(row) = *token {
                let start = row as usize * input_width + part * width;
                change(out, &self.batch.input_rows[start..start + width]);
            }
        }
    }

    /// Returns the token ids, `[T]`; 0 for non-token inputs.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the step's batch: positions, slots, page tables.
    pub fn batch(&self) -> &ForwardBatch {
        &self.batch
    }

    /// Returns the adapter of each row.
    pub fn adapter_runs(&self) -> &AdapterRuns {
        &self.adapter_runs
    }

    /// Returns the row indices that [`Backend::gather`](crate::Backend::gather) picks.
    pub fn rows(&self, rows: crate::RowSet) -> &[u32] {
        match rows {
            crate::RowSet::Outputs => &self.output_rows,
            crate::RowSet::LogitsOfOutputs => &self.logits_of_outputs,
        }
    }

    /// Returns whether a logit row samples.
    pub fn samples(&self, row: usize) -> bool {
        matches!(self.batch.outputs[row], RowOutput::Sample(_))
    }

    /// Samples every row and keeps the results. Implements [`Backend::sample`](crate::Backend::sample).
    ///
    /// `logits: [L, n_vocab]`, `outputs: [O, n_embd]`.
    pub fn sample(&mut self, logits: &[f32], n_vocab: usize, outputs: &[f32], n_embd: usize) {
        self.finish(logits, n_vocab, outputs, n_embd, None);
    }

    /// Keeps the results of a step; a device may have `picked` its tokens already. `picked` is called for
    /// each sampling row, in order.
    ///
    /// `logits: [L, n_vocab]`, empty if no row needs them; `outputs: [O, n_embd]`, empty if no row requests
    /// them.
    pub fn finish(
        &mut self,
        logits: &[f32],
        n_vocab: usize,
        outputs: &[f32],
        n_embd: usize,
        mut picked: Option<&mut PickRow<'_>>,
    ) {
        let mut result = self.spare.pop().unwrap_or_default();
        result.clear();
        self.sampled.clear();
        result.top_starts.push(0);
        for (row, wanted) in self.batch.outputs.iter().enumerate() {
            let logits_of_row = || &logits[row * n_vocab..(row + 1) * n_vocab];
            match (wanted, &mut picked) {
                (RowOutput::Sample(_), Some(picked)) => {
                    let token = picked(row, &mut result.top);
                    self.sampled.push(token.map_or(0, |token| token.id));
                    result.sampled.push(Some(token));
                }
                (RowOutput::Logits, _) => {
                    result.logits.extend_from_slice(logits_of_row());
                    result.sampled.push(None);
                    self.sampled.push(0);
                }
                (RowOutput::Sample(_), None) => {
                    let mut sampler = std::mem::take(&mut self.sampler);
                    let token = sampler.sample(self, row, logits_of_row(), &mut result.top);
                    self.sampler = sampler;
                    // A step planned ahead may refer to a row without a token; its result is then unused.
                    self.sampled.push(token.map_or(0, |token| token.id));
                    result.sampled.push(Some(token));
                }
            }
            result.top_starts.push(result.top.len() as u32);
        }
        for row in &self.batch.hidden_rows {
            let output_idx = self
                .output_rows
                .binary_search(row)
                .expect("a hidden row is an output");
            result
                .hidden
                .extend_from_slice(&outputs[output_idx * n_embd..(output_idx + 1) * n_embd]);
        }
        self.unread.push_back(result);
    }

    /// Returns the tokens of the last finished step, one per logit row; 0 if there is none.
    pub fn sampled(&self) -> &[u32] {
        &self.sampled
    }

    /// Returns whether a finished step is unread.
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Moves the oldest step's results to `output`. Implements [`Backend::read`](crate::Backend::read).
    ///
    /// # Panics
    /// If no step is unread.
    pub fn read(&mut self, output: &mut StepOutput) {
        let mut result = self.unread.pop_front().expect("a step that was not read");
        std::mem::swap(output, &mut result);
        self.spare.push(result);
    }
}

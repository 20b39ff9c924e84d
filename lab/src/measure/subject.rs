//! [`Sequences`]: the sequences of a loaded model that a measurement steps, without the engine.
//!
//! Invariant: each sequence has pages of its own, and, in a model with recurrent layers, a state of its own.

use anyhow::Context;
use tokenmill_backend::{
    Executor, ForwardBatch, PAGE_TOKENS, RowMask, RowOutput, SampleRow, SamplingParams, SeqState, StepOutput,
};
use tokenmill_model::ModelOptions;
use tokenmill_testkit::generate::{ids, run as run_step};

/// Sequences of at most `n_ctx` tokens each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequences {
    pub(crate) n_seqs: usize,
    pub(crate) n_ctx: usize,
}

impl Sequences {
    /// Returns the options with which a model has room for them, and for steps of so many tokens.
    pub(crate) fn options(self, max_batch_tokens: usize) -> ModelOptions {
        ModelOptions {
            n_ctx: Some(self.n_ctx),
            max_batch_tokens,
            max_batch_seqs: self.n_seqs,
            max_logit_rows: self.n_seqs,
            n_pages: Some(self.n_seqs * self.n_ctx.div_ceil(PAGE_TOKENS)),
            ..ModelOptions::default()
        }
    }

    /// Adds the tokens of a sequence from a position on to a step that returns `row` for the last.
    pub(crate) fn push(
        self,
        executor: &dyn Executor,
        batch: &mut ForwardBatch,
        seq_idx: usize,
        first: usize,
        tokens: &[u32],
        row: RowOutput,
    ) {
        let n_pages = self.n_ctx.div_ceil(PAGE_TOKENS);
        let pages: Vec<u32> = (seq_idx * n_pages..(seq_idx + 1) * n_pages)
            .map(|page| page as u32)
            .collect();
        batch.push_sequence(ids(tokens), first as u32, &pages);
        if executor.limits().n_states > 0 {
            batch.states.push(SeqState::own(seq_idx as u32));
        }
        batch.want_last(row);
    }

    /// Computes the first tokens of a sequence in steps of at most `n_step_tokens`; `row` makes the output of a step from its first position.
    ///
    /// # Errors
    /// A step's.
    pub(crate) fn fill(
        self,
        executor: &mut dyn Executor,
        seq_idx: usize,
        tokens: &[u32],
        n_step_tokens: usize,
        row: impl Fn(usize) -> RowOutput,
    ) -> anyhow::Result<()> {
        for (step_idx, chunk) in tokens.chunks(n_step_tokens).enumerate() {
            let first = step_idx * n_step_tokens;
            let mut batch = ForwardBatch::default();
            self.push(executor, &mut batch, seq_idx, first, chunk, row(first));
            run_step(executor, &batch)?;
        }
        Ok(())
    }

    /// Computes one token of each of the first sequences, at one position, and puts the sampled ones in their place; `row` makes the output of
    /// a sequence.
    ///
    /// # Errors
    /// A step's, or a row without a token.
    pub(crate) fn decode(
        self,
        executor: &mut dyn Executor,
        tokens: &mut [u32],
        position: usize,
        row: impl Fn(usize) -> RowOutput,
    ) -> anyhow::Result<()> {
        let mut batch = ForwardBatch::default();
        for (seq_idx, token) in tokens.iter().enumerate() {
            self.push(executor, &mut batch, seq_idx, position, &[*token], row(seq_idx));
        }
        tokens.copy_from_slice(&sampled(&run_step(executor, &batch)?)?);
        Ok(())
    }
}

/// Returns the token of each row.
///
/// # Errors
/// A row that does not sample, or that has no token.
pub(crate) fn sampled(output: &StepOutput) -> anyhow::Result<Vec<u32>> {
    let tokens = (output.sampled.iter()).map(|sampled| Ok(sampled.context("the row samples")??.id));
    tokens.collect()
}

/// Returns the output of a row that is sampled so.
pub(crate) fn sample(params: SamplingParams) -> RowOutput {
    RowOutput::Sample(SampleRow {
        params: params.into(),
        history: 0..0,
        n_prompt: 0,
        mask: RowMask::Any,
    })
}

/// Returns the output of a row whose likeliest token is taken.
pub(crate) fn greedy() -> RowOutput {
    sample(SamplingParams::default())
}

/// Returns so many tokens that are spread over the vocabulary, others for each sequence.
pub(crate) fn tokens(seq_idx: usize, n_tokens: usize, n_vocab: usize) -> Vec<u32> {
    (0..n_tokens)
        .map(|position| ((seq_idx * 7919 + position * 104_729 + 13) % n_vocab) as u32)
        .collect()
}

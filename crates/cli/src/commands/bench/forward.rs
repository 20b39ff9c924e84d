//! [`Forward`]: known tokens through an executor, without an engine: what `ppN` and `tgN` measure.
//!
//! Separate because it is the only place of the program that drives an executor itself. Invariant: no token is sampled;
//! one sequence is stored at a time.

use tokenmill_backend::{
    Executor, ForwardBatch, PAGE_TOKENS, RowOutput, StepError, StepOutput, StepTrace, TokenSource,
};

/// One sequence in an executor of its own.
pub(super) struct Forward {
    executor: Box<dyn Executor + Send>,
    batch: ForwardBatch,
    output: StepOutput,
    pages: Vec<u32>,
    n_stored: usize,
}

impl Forward {
    /// Takes an executor.
    pub(super) fn new(executor: Box<dyn Executor + Send>) -> Self {
        Self {
            pages: (0..executor.limits().n_pages as u32).collect(),
            executor,
            batch: ForwardBatch::default(),
            output: StepOutput::default(),
            n_stored: 0,
        }
    }

    /// What the time of the steps went to, where the device measures it.
    pub(super) fn trace(&self) -> Option<StepTrace> {
        self.executor.trace()
    }

    /// Goes back to the first `n_tokens` that are stored, or to all; gives how many are missing.
    pub(super) fn begin(&mut self, n_tokens: usize) -> usize {
        self.n_stored = self.n_stored.min(n_tokens);
        n_tokens - self.n_stored
    }

    /// Computes `tokens` behind those that are stored, and the logits of the last. The caller keeps to the executor's
    /// limits.
    ///
    /// # Errors
    /// A step that fails.
    pub(super) fn run(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        let first_position = self.n_stored as u32;
        self.n_stored += tokens.len();
        self.batch.clear();
        self.batch.push_sequence(
            tokens.iter().map(|&id| TokenSource::Id(id)),
            first_position,
            &self.pages[..self.n_stored.div_ceil(PAGE_TOKENS)],
        );
        self.batch.want_last(RowOutput::Logits);
        let ticket = self.executor.submit(&self.batch)?;
        self.executor.wait(ticket, &mut self.output)
    }
}

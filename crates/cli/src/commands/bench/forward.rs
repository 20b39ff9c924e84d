//! [`Forward`]: runs known tokens through an executor, without an engine, for `ppN` and `tgN`.
//!
//! Only this file of the program drives an executor itself. Invariant: no token is sampled; one sequence is
//! stored at a time.

use tokenmill_backend::{
    Executor, ForwardBatch, PAGE_TOKENS, RowOutput, SeqState, StateSave, StepOutput, StepTrace, TokenSource,
};
use tokenmill_sched::EngineError;

/// One sequence in an executor of its own.
pub(super) struct Forward {
    executor: Box<dyn Executor + Send>,
    batch: ForwardBatch,
    output: StepOutput,
    pages: Vec<u32>,
    n_stored: usize,
    /// For a model with recurrent states: the number of tokens before a test, and whether there is a snapshot
    /// at that position.
    n_before: usize,
    has_snapshot: bool,
}

/// The slot of the sequence's recurrent state, and that of the snapshot before a test.
const STATE: u32 = 0;
const SNAPSHOT: u32 = 1;

impl Forward {
    /// Takes an executor.
    pub(super) fn new(executor: Box<dyn Executor + Send>) -> Self {
        Self {
            pages: (0..executor.limits().n_pages as u32).collect(),
            executor,
            batch: ForwardBatch::default(),
            output: StepOutput::default(),
            n_stored: 0,
            n_before: 0,
            has_snapshot: false,
        }
    }

    /// Returns the breakdown of the steps' time, if the device measures it.
    pub(super) fn trace(&self) -> Option<StepTrace> {
        self.executor.trace()
    }

    /// Goes back to the first `n_tokens` that are stored, or to all stored ones; returns how many are
    /// missing.
    pub(super) fn begin(&mut self, n_tokens: usize) -> usize {
        let is_recurrent = self.executor.limits().n_states > 0;
        self.has_snapshot &= self.n_before == n_tokens;
        self.n_before = n_tokens;
        if is_recurrent && !self.has_snapshot {
            // A state cannot be cut.
            self.n_stored = 0;
        }
        self.n_stored = self.n_stored.min(n_tokens);
        n_tokens - self.n_stored
    }

    /// Returns the slots of the recurrent state for a run that begins after `first` tokens.
    fn state(&mut self, first: usize) -> SeqState {
        let is_here = self.has_snapshot && first == self.n_before;
        let is_passed = !self.has_snapshot && (first + 1..=self.n_stored).contains(&self.n_before);
        self.has_snapshot |= is_passed;
        SeqState {
            from: if is_here { SNAPSHOT } else { STATE },
            to: STATE,
            save: is_passed.then_some(StateSave {
                n_tokens: self.n_before as u32,
                slot: SNAPSHOT,
            }),
        }
    }

    /// Computes `tokens` after the stored ones, and the logits of the last. The caller keeps to the executor's
    /// limits.
    ///
    /// # Errors
    /// A step that fails.
    pub(super) fn run(&mut self, tokens: &[u32]) -> Result<(), EngineError> {
        let first = self.n_stored;
        self.n_stored += tokens.len();
        self.batch.clear();
        self.batch.push_sequence(
            tokens.iter().map(|&id| TokenSource::Id(id)),
            first as u32,
            &self.pages[..self.n_stored.div_ceil(PAGE_TOKENS)],
        );
        if self.executor.limits().n_states > 0 {
            let state = self.state(first);
            self.batch.states.push(state);
        }
        self.batch.want_last(RowOutput::Logits);
        let ticket = self.executor.submit(&self.batch)?;
        Ok(self.executor.wait(ticket, &mut self.output)?)
    }
}

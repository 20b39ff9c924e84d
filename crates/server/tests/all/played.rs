//! An executor without a network, whose answers a function gives.
//!
//! Executors that babble and that follow a script share it. Invariant: every batch is checked as a real
//! backend checks it.

use std::collections::VecDeque;

use tokenmill_backend::{
    Executor, ExecutorLimits, ForwardBatch, PageCopy, PageGroup, StepError, StepOutput, Ticket,
};

/// The executor; see the module.
pub(crate) struct Played {
    limits: ExecutorLimits,
    answer: Box<dyn FnMut(&ForwardBatch) -> StepOutput + Send>,
    n_steps: u64,
    n_sampled: usize,
    open: VecDeque<(u64, StepOutput)>,
}

/// Numbers of the hidden state of a token.
pub(crate) const N_EMBD: usize = 8;

impl Played {
    pub(crate) fn new(
        [n_vocab, n_ctx, n_pages]: [usize; 3],
        answer: impl FnMut(&ForwardBatch) -> StepOutput + Send + 'static,
    ) -> Self {
        let limits = ExecutorLimits {
            n_vocab,
            n_embd: N_EMBD,
            n_ctx,
            n_pages,
            n_host_pages: 0,
            n_states: 0,
            max_batch_tokens: 512,
            max_batch_seqs: 64,
            max_logit_rows: 512,
            kv_window: None,
            window_group: None,
            pooling: None,
            is_encoder: false,
        };
        Self {
            limits,
            answer: Box::new(answer),
            n_steps: 0,
            n_sampled: 0,
            open: VecDeque::new(),
        }
    }

    /// Keeps something as long as the executor is in memory.
    pub(crate) fn with(mut self, kept: impl Send + 'static) -> Self {
        let mut answer = self.answer;
        self.answer = Box::new(move |batch| {
            let _kept = &kept;
            answer(batch)
        });
        self
    }
}

impl Executor for Played {
    fn limits(&self) -> &ExecutorLimits {
        &self.limits
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        batch.validate(&self.limits, self.n_sampled)?;
        let output = (self.answer)(batch);
        self.n_sampled = batch.logit_rows.len();
        self.open.push_back((self.n_steps, output));
        self.n_steps += 1;
        Ok(Ticket(self.n_steps - 1))
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        let (step, result) = self.open.pop_front().expect("a step is in flight");
        assert_eq!(ticket, Ticket(step), "steps are waited for in order");
        *output = result;
        Ok(())
    }

    fn copy_pages(&mut self, _: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        for copy in copies {
            let PageCopy::Duplicate { from, to } = *copy else {
                panic!("there is no host tier");
            };
            assert!((from.max(to) as usize) < self.limits.n_pages, "{copy:?}");
        }
        Ok(())
    }
}

//! An executor that says what a test tells it to, for tests of what becomes of an answer.
//!
//! A request is known by its seed. Its first sampled token is the script's first, and so on; then the text ends.

use std::{
    collections::{HashMap, VecDeque},
    thread,
    time::Duration,
};

use tokenmill_backend::{
    Executor, ExecutorLimits, ForwardBatch, PageCopy, PageGroup, RowOutput, SampledToken, StepError,
    StepOutput, Ticket,
};

/// The executor; see the module.
pub(crate) struct Script {
    limits: ExecutorLimits,
    tokens: Vec<u32>,
    end_id: u32,
    step_time: Duration,
    /// Where each request's answer begins, by its seed.
    starts: HashMap<u64, u32>,
    n_steps: u64,
    n_sampled: usize,
    open: VecDeque<(u64, StepOutput)>,
}

impl Script {
    pub(crate) fn new(
        n_vocab: usize,
        end_id: u32,
        n_pages: usize,
        tokens: Vec<u32>,
        step_time: Duration,
    ) -> Self {
        let limits = ExecutorLimits {
            n_vocab,
            n_embd: 8,
            n_ctx: 2048,
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
            tokens,
            end_id,
            step_time,
            starts: HashMap::new(),
            n_steps: 0,
            n_sampled: 0,
            open: VecDeque::new(),
        }
    }

    fn run(&mut self, batch: &ForwardBatch) -> StepOutput {
        thread::sleep(self.step_time);
        let mut output = StepOutput::default();
        output.top_starts.push(0);
        for (&row, wanted) in batch.logit_rows.iter().zip(&batch.outputs) {
            let RowOutput::Sample(sample) = wanted else {
                panic!("only samples are scripted");
            };
            let position = batch.positions[row as usize];
            let start = *self.starts.entry(sample.params.seed).or_insert(position);
            let id = self.tokens.get((position - start) as usize).copied();
            output.sampled.push(Some(Ok(SampledToken {
                id: id.unwrap_or(self.end_id),
                logprob: None,
            })));
            output.top_starts.push(0);
        }
        output
    }
}

impl Executor for Script {
    fn limits(&self) -> &ExecutorLimits {
        &self.limits
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        batch.validate(&self.limits, self.n_sampled)?;
        let output = self.run(batch);
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

    fn copy_pages(&mut self, _: PageGroup, _: &[PageCopy]) -> Result<(), StepError> {
        Ok(())
    }
}

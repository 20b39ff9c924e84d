//! An executor without a network, for tests in which many requests matter and their words do not.
//!
//! A token is a hash of its seed and position, so that answers end after a few dozen tokens and repeat. Every batch is
//! checked as a real backend checks it.

use std::collections::VecDeque;

use tokenmill_backend::{
    Executor, ExecutorLimits, ForwardBatch, PageCopy, PageGroup, RowOutput, SampledToken, StepError,
    StepOutput, Ticket, TokenLogprob,
};

/// The executor; see the module.
pub(crate) struct Babble {
    limits: ExecutorLimits,
    /// A token that ends texts; one in thirty is this one.
    end_id: u32,
    n_steps: u64,
    n_sampled: usize,
    open: VecDeque<(u64, StepOutput)>,
}

impl Babble {
    pub(crate) fn new(n_vocab: usize, end_id: u32, n_pages: usize) -> Self {
        let limits = ExecutorLimits {
            n_vocab,
            n_embd: 8,
            n_ctx: 256,
            n_pages,
            n_host_pages: 0,
            max_batch_tokens: 512,
            max_batch_seqs: 64,
            max_logit_rows: 512,
            kv_window: None,
            window_group: None,
            pooling: None,
            is_encoder: false,
            n_states: 0,
        };
        Self {
            limits,
            end_id,
            n_steps: 0,
            n_sampled: 0,
            open: VecDeque::new(),
        }
    }

    fn choose(&self, seed: u64, position: u32) -> u32 {
        let state = mix(seed ^ u64::from(position) << 32);
        if state.is_multiple_of(30) {
            return self.end_id;
        }
        (state % self.limits.n_vocab as u64) as u32
    }

    fn run(&self, batch: &ForwardBatch) -> StepOutput {
        let n_vocab = self.limits.n_vocab as u32;
        let mut output = StepOutput::default();
        output.top_starts.push(0);
        for (&row, wanted) in batch.logit_rows.iter().zip(&batch.outputs) {
            let position = batch.positions[row as usize];
            match wanted {
                RowOutput::Logits => {
                    let logits = (0..n_vocab).map(|id| ((id ^ position) % 17) as f32);
                    output.logits.extend(logits);
                    output.sampled.push(None);
                }
                RowOutput::Sample(sample) => {
                    let id = self.choose(sample.params.seed, position);
                    let n_top = sample.params.n_logprobs;
                    output.sampled.push(Some(Ok(SampledToken {
                        id,
                        logprob: n_top.map(|_| -1.5),
                    })));
                    output
                        .top
                        .extend((0..n_top.unwrap_or(0)).map(|rank| TokenLogprob {
                            id: (id + rank) % n_vocab,
                            logprob: -(rank as f32),
                        }));
                }
            }
            output.top_starts.push(output.top.len() as u32);
        }
        let n_values = batch.hidden_rows.len() * self.limits.n_embd;
        output.hidden.extend((0..n_values).map(|at| at as f32));
        output
    }
}

impl Executor for Babble {
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

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

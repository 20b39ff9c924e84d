//! A deterministic executor for tests: its next token is a hash of everything that a sequence may see, read through its
//! own paged store.
//!
//! A stored value is a hash of its token, its position and all visible values, like K and V of a real model. So a wrong
//! page, position, copy or stale page changes every token after it. [`reference()`] computes the same without pages.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokenmill_backend::{
    Executor, ExecutorLimits, ForwardBatch, PAGE_TOKENS, PageCopy, PageGroup, RowError, RowMask, RowOutput,
    SampleRow, SampledToken, SamplingParams, StepError, StepOutput, Ticket, TokenLogprob, TokenSource,
};

mod reference;

use self::reference::{choose, hidden, logits, mix, nearest_allowed, see, store_value};
pub use self::reference::{reference, reference_hidden, reference_logits, reference_with_masks};
pub use crate::hidden_reader::HiddenReader;

/// The failures of an executor, and when they occur; steps and copies are counted from 0.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Steps that fail when they are submitted.
    pub submits: Vec<u64>,
    /// Steps that fail when they are waited for; the data that they store is garbage.
    pub waits: Vec<u64>,
    /// Steps whose first sampled row is not finite.
    pub rows: Vec<u64>,
    /// Calls of `copy_pages` that fail; the data that they should write is garbage.
    pub copies: Vec<u64>,
    /// The step at which the device is lost.
    pub lost_at: Option<u64>,
    /// The step at which the executor panics.
    pub panics_at: Option<u64>,
}

/// An executor without a model; see the module.
pub struct FakeExecutor {
    limits: ExecutorLimits,
    /// Number of tokens that each state slot has seen, and the carried state.
    slots: Vec<(u32, u64)>,
    /// The store of each group.
    stores: [FakeStore; PageGroup::ALL.len()],
    faults: Faults,
    n_steps: u64,
    n_copies: u64,
    open: VecDeque<(u64, StepOutput, Option<StepError>)>,
    last_sampled: Vec<u32>,
    /// Number of steps that it reports as worth having in flight.
    pub steps_in_flight: usize,
    /// Whether it reports that it takes masks that arrive while a step runs.
    pub takes_late_masks: bool,
    /// Whether, and how, it reads the hidden states of an executor with the same limits.
    pub hidden: HiddenReader,
    most_in_flight: Arc<AtomicUsize>,
    /// Called before each step, for instance to make it take time.
    pub on_step: Box<dyn FnMut(&ForwardBatch) + Send>,
}

/// The pages of a group, and those of its host tier.
#[derive(Default)]
struct FakeStore {
    pages: Vec<[u64; PAGE_TOKENS]>,
    host_pages: Vec<[u64; PAGE_TOKENS]>,
}

const GARBAGE: u64 = 0x0BAD_0BAD_0BAD_0BAD;

/// Limits for tests: 32 tokens in the vocabulary, everything else small.
pub fn limits(n_pages: usize) -> ExecutorLimits {
    ExecutorLimits {
        n_vocab: 32,
        n_embd: 4,
        n_ctx: 4096,
        n_pages,
        n_host_pages: 0,
        max_batch_tokens: 64,
        max_batch_seqs: 40,
        max_logit_rows: 40,
        kv_window: None,
        window_group: None,
        pooling: None,
        is_encoder: false,
        n_states: 0,
    }
}

impl FakeExecutor {
    /// Makes an executor that never fails.
    pub fn new(limits: ExecutorLimits) -> Self {
        Self {
            slots: vec![(u32::MAX, GARBAGE); limits.n_states],
            stores: PageGroup::ALL.map(|group| {
                limits
                    .group(group)
                    .map_or_else(FakeStore::default, |limits| FakeStore {
                        pages: vec![[GARBAGE; PAGE_TOKENS]; limits.n_pages],
                        host_pages: vec![[GARBAGE; PAGE_TOKENS]; limits.n_host_pages],
                    })
            }),
            limits,
            faults: Faults::default(),
            n_steps: 0,
            n_copies: 0,
            open: VecDeque::new(),
            last_sampled: Vec::new(),
            steps_in_flight: 1,
            takes_late_masks: false,
            hidden: HiddenReader::Nothing,
            most_in_flight: Arc::default(),
            on_step: Box::new(|_| {}),
        }
    }

    /// Makes an executor with these failures.
    pub fn with_faults(limits: ExecutorLimits, faults: Faults) -> Self {
        Self {
            faults,
            ..Self::new(limits)
        }
    }

    /// Returns the largest number of steps that were in flight at a time; it can be read while an engine has the executor.
    pub fn most_in_flight(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.most_in_flight)
    }

    /// Exchanges all stored data with another executor's, without a copy.
    fn swap_store(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.slots, &mut other.slots);
        std::mem::swap(&mut self.stores, &mut other.stores);
        std::mem::swap(&mut self.last_sampled, &mut other.last_sampled);
        std::mem::swap(&mut self.n_steps, &mut other.n_steps);
        std::mem::swap(&mut self.n_copies, &mut other.n_copies);
    }

    fn lost(&self, operation: &'static str) -> Option<StepError> {
        let is_lost = self.faults.lost_at.is_some_and(|at| self.n_steps >= at);
        is_lost.then(|| StepError::DeviceLost {
            operation,
            reason: "it fell off the bus".to_owned(),
        })
    }

    /// Stores the tokens of a sequence and returns the state after each.
    fn run_sequence(&mut self, batch: &ForwardBatch, seq_idx: usize, is_garbage: bool) -> Vec<u64> {
        let slots = batch.states.get(seq_idx).copied();
        let first = batch.positions[batch.tokens_of(seq_idx).start];
        let mut carried = match slots {
            Some(slots) if first > 0 => {
                let (n_tokens, carried) = self.slots[slots.from as usize];
                assert_eq!(n_tokens, first, "tokens that the state has seen");
                carried
            }
            _ => 0,
        };
        batch
            .tokens_of(seq_idx)
            .map(|token_idx| {
                // In a step that fails, the contents of the pages belong to no token.
                if !is_garbage {
                    self.check_hidden(batch, seq_idx, token_idx);
                }
                let id = match batch.tokens[token_idx] {
                    TokenSource::Row(_) => unreachable!("it takes tokens alone"),
                    TokenSource::Id(id) => id,
                    TokenSource::SampledRow(row) => self.last_sampled[row as usize],
                };
                let position = batch.positions[token_idx] as usize;
                let seen = see(&self.limits, position, |group, at| {
                    let page = batch.table_of(seq_idx, group)[at / PAGE_TOKENS];
                    self.stores[group.index()].pages[page as usize][at % PAGE_TOKENS]
                });
                let value = store_value(seen, id, position);
                for (group, _) in self.limits.groups() {
                    let slot = batch.slots_in(group)[token_idx] as usize;
                    let page = &mut self.stores[group.index()].pages[slot / PAGE_TOKENS];
                    page[slot % PAGE_TOKENS] = if is_garbage { GARBAGE } else { value };
                }
                if let Some(slots) = slots {
                    carried = mix(carried ^ value);
                    let stored = if is_garbage { GARBAGE } else { carried };
                    let n_tokens = position as u32 + 1;
                    self.slots[slots.to as usize] = (n_tokens, stored);
                    if let Some(save) = slots.save
                        && save.n_tokens == n_tokens
                    {
                        self.slots[save.slot as usize] = (n_tokens, stored);
                    }
                }
                mix(seen ^ value ^ carried)
            })
            .collect()
    }

    /// Checks the hidden state before a token, if the executor reads them.
    fn check_hidden(&self, batch: &ForwardBatch, seq_idx: usize, token_idx: usize) {
        let stored = |group: PageGroup, at: usize| {
            let page = batch.table_of(seq_idx, group)[at / PAGE_TOKENS];
            self.stores[group.index()].pages[page as usize][at % PAGE_TOKENS]
        };
        self.hidden.check(batch, token_idx, self.limits.n_embd, |before| {
            let seen = see(&self.limits, before, stored);
            hidden(mix(seen ^ stored(PageGroup::Main, before)), self.limits.n_embd).collect()
        });
    }

    fn run(&mut self, batch: &ForwardBatch, is_garbage: bool, has_bad_row: bool) -> StepOutput {
        let mut states = Vec::with_capacity(batch.n_tokens());
        for seq_idx in 0..batch.n_seqs() {
            let of_sequence = self.run_sequence(batch, seq_idx, is_garbage);
            states.extend(of_sequence);
        }
        let mut output = StepOutput::default();
        output.top_starts.push(0);
        let mut has_bad_row = has_bad_row;
        let mut sampled_ids = Vec::new();
        for (&row, wanted) in batch.logit_rows.iter().zip(&batch.outputs) {
            let state = states[row as usize];
            let mut id = 0;
            match wanted {
                RowOutput::Logits => {
                    output.logits.extend(logits(state, self.limits.n_vocab));
                    output.sampled.push(None);
                }
                RowOutput::Sample(_) if std::mem::take(&mut has_bad_row) => {
                    output.sampled.push(Some(Err(RowError::NonFiniteLogits)));
                }
                RowOutput::Sample(sample) => {
                    let history = self.history(batch, sample, row as usize);
                    let position = batch.positions[row as usize] as usize + 1;
                    let chosen = choose(state, &sample.params, &history, position, self.limits.n_vocab);
                    let n_words = self.limits.n_vocab.div_ceil(32);
                    let mut late = Vec::new();
                    let mask = match &sample.mask {
                        RowMask::Any => None,
                        RowMask::Words(start) => {
                            Some(&batch.mask_words[*start as usize..*start as usize + n_words])
                        }
                        RowMask::Late(mask) => {
                            if !mask.wait(&mut late) {
                                late = vec![0; n_words];
                            }
                            Some(&late[..])
                        }
                    };
                    let Some(allowed) = nearest_allowed(chosen, mask, self.limits.n_vocab) else {
                        output.sampled.push(Some(Err(RowError::NothingAllowed)));
                        sampled_ids.push(0);
                        output.top_starts.push(output.top.len() as u32);
                        continue;
                    };
                    id = allowed;
                    output.sampled.push(Some(Ok(SampledToken {
                        id,
                        logprob: sample.params.n_logprobs.map(|_| -(id as f32)),
                    })));
                    let n_top = sample.params.n_logprobs.unwrap_or(0);
                    output.top.extend((0..n_top).map(|rank| TokenLogprob {
                        id: (id + rank) % self.limits.n_vocab as u32,
                        logprob: -(rank as f32),
                    }));
                }
            }
            sampled_ids.push(id);
            output.top_starts.push(output.top.len() as u32);
        }
        for &row in &batch.hidden_rows {
            output
                .hidden
                .extend(hidden(states[row as usize], self.limits.n_embd));
        }
        self.last_sampled = sampled_ids;
        output
    }

    /// Returns the history of a row with its newest token, if the engine did not know that.
    fn history(&self, batch: &ForwardBatch, sample: &SampleRow, row: usize) -> Vec<u32> {
        let mut history = batch.history[sample.history.start as usize..sample.history.end as usize].to_vec();
        if let TokenSource::SampledRow(row) = batch.tokens[row] {
            history.push(self.last_sampled[row as usize]);
        }
        history
    }
}

impl Executor for FakeExecutor {
    fn limits(&self) -> &ExecutorLimits {
        &self.limits
    }

    fn steps_in_flight(&self) -> usize {
        self.steps_in_flight
    }

    fn takes_late_masks(&self) -> bool {
        self.takes_late_masks
    }

    fn reads_hidden(&self) -> bool {
        !matches!(self.hidden, HiddenReader::Nothing)
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        assert!(self.open.len() < 2, "two steps are in flight already");
        let step = self.n_steps;
        if let Some(lost) = self.lost("submit") {
            return Err(lost);
        }
        assert_ne!(
            self.faults.panics_at,
            Some(step),
            "the executor was told to panic"
        );
        batch
            .validate(&self.limits, self.last_sampled.len())
            .expect("the engine sends valid batches");
        batch
            .validate_hidden_inputs(self.limits.n_embd, self.reads_hidden())
            .expect("the engine sends hidden states where they are read");
        self.n_steps += 1;
        let device_error = |reason: &str| StepError::Device {
            operation: "step",
            reason: reason.to_owned(),
        };
        if self.faults.submits.contains(&step) {
            return Err(device_error("told to fail on submit"));
        }
        (self.on_step)(batch);
        let fails = self.faults.waits.contains(&step);
        let output = self.run(batch, fails, self.faults.rows.contains(&step));
        self.open
            .push_back((step, output, fails.then(|| device_error("told to fail on wait"))));
        self.most_in_flight.fetch_max(self.open.len(), Ordering::Relaxed);
        Ok(Ticket(step))
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        let (step, result, error) = self.open.pop_front().expect("a step is in flight");
        assert_eq!(ticket, Ticket(step), "steps are waited for in order");
        if let Some(error) = error {
            return Err(error);
        }
        *output = result;
        Ok(())
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        if let Some(lost) = self.lost("copy_pages") {
            return Err(lost);
        }
        let fails = self.faults.copies.contains(&self.n_copies);
        self.n_copies += 1;
        let FakeStore { pages, host_pages } = &mut self.stores[group.index()];
        for &copy in copies {
            let (target, value) = match copy {
                PageCopy::Duplicate { from, to } => {
                    let value = pages[from as usize];
                    (&mut pages[to as usize], value)
                }
                PageCopy::Download { page, host_page } => {
                    (&mut host_pages[host_page as usize], pages[page as usize])
                }
                PageCopy::Upload { host_page, page } => {
                    (&mut pages[page as usize], host_pages[host_page as usize])
                }
            };
            *target = if fails { [GARBAGE; PAGE_TOKENS] } else { value };
        }
        if fails {
            return Err(StepError::Device {
                operation: "copy_pages",
                reason: "told to fail".to_owned(),
            });
        }
        Ok(())
    }
}

/// Two executors in one: batches of at least `threshold` sequences use the second route. The store moves with the route.
pub struct RoutedExecutor {
    routes: [FakeExecutor; 2],
    threshold: usize,
    home: usize,
    open_routes: VecDeque<usize>,
    /// Steps that each route took.
    pub n_taken: Arc<[AtomicUsize; 2]>,
}

impl RoutedExecutor {
    /// Makes both routes, which fail alike.
    pub fn new(limits: &ExecutorLimits, faults: &Faults, threshold: usize) -> Self {
        Self {
            routes: [(); 2].map(|()| FakeExecutor::with_faults(limits.clone(), faults.clone())),
            threshold,
            home: 0,
            open_routes: VecDeque::new(),
            n_taken: Arc::default(),
        }
    }
}

impl Executor for RoutedExecutor {
    fn limits(&self) -> &ExecutorLimits {
        self.routes[0].limits()
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        let route = usize::from(batch.n_seqs() >= self.threshold);
        if route != self.home {
            let [small, large] = &mut self.routes;
            small.swap_store(large);
            self.home = route;
        }
        self.n_taken[route].fetch_add(1, Ordering::Relaxed);
        let ticket = self.routes[route].submit(batch)?;
        self.open_routes.push_back(route);
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        let route = self.open_routes.pop_front().expect("a step is in flight");
        self.routes[route].wait(ticket, output)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        self.routes[self.home].copy_pages(group, copies)
    }
}

/// Returns a prompt from a set with common beginnings: prompt `i` has `len` tokens, the first `n_shared` of them those of
/// family `family`.
pub fn prompt(family: u64, own: u64, n_shared: usize, len: usize) -> Vec<u32> {
    (0..len as u64)
        .map(|at| {
            let source = if (at as usize) < n_shared {
                family << 20
            } else {
                own << 40 | 1
            };
            (mix(source ^ at << 8) % 32) as u32
        })
        .collect()
}

/// Default sampling with another seed.
pub fn sampled(seed: u64, repeat_penalty: f32) -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        seed,
        repeat_penalty,
        penalty_last_n: 5,
        ..SamplingParams::default()
    }
}

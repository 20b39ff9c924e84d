//! [`Scene`]: sequences, their pages, and the steps in which a network reads them.
//!
//! Most claims play a scene. Invariant: a scene plays on any network; its logits are in the order of its sequences, whatever
//! its steps.

use tokenmill_backend::{Executor, ForwardBatch, KvType, PAGE_TOKENS, PageGroup, RowOutput, SeqState};
use tokenmill_model::{ModelOptions, WindowPages};

use super::subject::Subject;
use crate::{
    NaiveBackend,
    generate::{ids, run},
    random::Random,
    tiny_model::TinyModel,
};

/// Pages of each group.
pub(super) const N_PAGES: usize = 24;

fn options([keys, values]: [KvType; 2]) -> ModelOptions {
    ModelOptions {
        max_batch_tokens: 128,
        max_batch_seqs: 4,
        max_logit_rows: 128,
        n_pages: Some(N_PAGES),
        window_pages: WindowPages::Own,
        kv_type: keys,
        kv_value_type: Some(values),
        ..Default::default()
    }
}

/// Loads a network on the naive backend, with a type for keys and one for values.
pub(super) fn oracle_with(model: &TinyModel, kv_types: [KvType; 2]) -> Box<dyn Executor> {
    Box::new(model.load_on(NaiveBackend::new(), &options(kv_types)))
}

/// Loads a network on the backend under test, with keys and values of one type.
pub(super) fn on(
    subject: &Subject,
    n_threads: usize,
    model: &TinyModel,
    kv_type: KvType,
) -> Box<dyn Executor> {
    on_with(subject, n_threads, model, [kv_type; 2])
}

/// As [`on`], with a type for keys and one for values.
pub(super) fn on_with(
    subject: &Subject,
    n_threads: usize,
    model: &TinyModel,
    kv_types: [KvType; 2],
) -> Box<dyn Executor> {
    (subject.load)(n_threads, model, &options(kv_types))
}

/// A few sequences, their pages, and the steps in which their tokens are fed.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) sequences: Vec<Vec<u32>>,
    /// The pages of each sequence, for each group.
    pages: [Vec<Vec<u32>>; PageGroup::ALL.len()],
    /// The number of tokens and the sequences of each step.
    steps: Vec<Vec<(usize, usize)>>,
}

impl Scene {
    /// Three sequences of random lengths in shuffled pages, in ragged steps.
    pub(super) fn random(random: &mut Random, n_vocab: usize) -> Self {
        let sequences: Vec<Vec<u32>> = (0..3)
            .map(|_| {
                let len = 1 + random.below(60);
                (0..len).map(|_| random.below(n_vocab) as u32).collect()
            })
            .collect();
        let scene = Self {
            pages: Default::default(),
            steps: Vec::new(),
            sequences,
        };
        scene.rescheduled(random)
    }

    /// Returns the same sequences in other pages and steps.
    pub(super) fn rescheduled(&self, random: &mut Random) -> Self {
        let mut left: Vec<usize> = self.sequences.iter().map(Vec::len).collect();
        let mut steps = Vec::new();
        while left.iter().any(|&n| n > 0) {
            let mut order: Vec<usize> = (0..left.len()).filter(|&seq_idx| left[seq_idx] > 0).collect();
            random.shuffle(&mut order);
            order.truncate(1 + random.below(order.len()));
            let step: Vec<_> = (order.into_iter())
                .map(|seq_idx| {
                    let most = if random.below(2) == 0 { 1 } else { left[seq_idx] };
                    let n_tokens = 1 + random.below(most);
                    left[seq_idx] -= n_tokens;
                    (seq_idx, n_tokens)
                })
                .collect();
            steps.push(step);
        }
        Self {
            pages: self.shuffled_pages(random),
            steps,
            sequences: self.sequences.clone(),
        }
    }

    /// Returns the same sequences, one after the other, each in one step.
    pub(super) fn alone(&self, random: &mut Random) -> Self {
        Self {
            pages: self.shuffled_pages(random),
            steps: (self.sequences.iter().enumerate())
                .map(|(seq_idx, tokens)| vec![(seq_idx, tokens.len())])
                .collect(),
            sequences: self.sequences.clone(),
        }
    }

    fn shuffled_pages(&self, random: &mut Random) -> [Vec<Vec<u32>>; PageGroup::ALL.len()] {
        PageGroup::ALL.map(|_| {
            let mut free: Vec<u32> = (0..N_PAGES as u32).collect();
            random.shuffle(&mut free);
            (self.sequences.iter())
                .map(|tokens| free.split_off(free.len() - tokens.len().div_ceil(PAGE_TOKENS)))
                .collect()
        })
    }

    /// Returns a sequence's page table in a group at a step that begins at `first`: pages that no token sees any more are
    /// absent.
    fn table(&self, executor: &dyn Executor, group: PageGroup, seq_idx: usize, first: usize) -> Vec<u32> {
        let window = executor.limits().group(group).and_then(|limits| limits.window);
        let n_gone = window.map_or(0, |window| (first + 1).saturating_sub(window) / PAGE_TOKENS);
        let mut table = self.pages[group.index()][seq_idx].clone();
        table[..n_gone].fill(ForwardBatch::UNMAPPED_PAGE);
        table
    }

    /// Returns the places of a sequence's state, which moves between two slots of its own.
    fn state(&self, seq_idx: usize, step_idx: usize) -> SeqState {
        let slot = |idx: usize| (2 * seq_idx + idx % 2) as u32;
        let is_in = |step: &&Vec<(usize, usize)>| step.iter().any(|&(other, _)| other == seq_idx);
        let n_before = self.steps[..step_idx].iter().filter(is_in).count();
        SeqState {
            from: slot(n_before),
            to: slot(n_before + 1),
            save: None,
        }
    }

    /// Returns the logits of every token: a row for each, sequence after sequence.
    pub(super) fn play(&self, executor: &mut dyn Executor) -> Vec<Vec<f32>> {
        let n_vocab = executor.limits().n_vocab;
        let mut logits: Vec<Vec<Vec<f32>>> = vec![Vec::new(); self.sequences.len()];
        let has_states = executor.limits().n_states > 0;
        for (step_idx, step) in self.steps.iter().enumerate() {
            let mut batch = ForwardBatch::default();
            for &(seq_idx, n_tokens) in step {
                let first = logits[seq_idx].len();
                let tokens = &self.sequences[seq_idx][first..first + n_tokens];
                let table = |group| self.table(executor, group, seq_idx, first);
                batch.push_sequence(ids(tokens), first as u32, &table(PageGroup::Main));
                if executor.limits().window_group.is_some() {
                    batch.push_window_pages(&table(PageGroup::Window));
                }
                if has_states {
                    batch.states.push(self.state(seq_idx, step_idx));
                }
            }
            batch.logit_rows = (0..batch.n_tokens() as u32).collect();
            batch.outputs = vec![RowOutput::Logits; batch.n_tokens()];
            let output = run(executor, &batch).expect("a valid batch");
            let mut rows = output.logits.chunks_exact(n_vocab).map(<[f32]>::to_vec);
            for &(seq_idx, n_tokens) in step {
                logits[seq_idx].extend(rows.by_ref().take(n_tokens));
            }
        }
        logits.into_iter().flatten().collect()
    }
}

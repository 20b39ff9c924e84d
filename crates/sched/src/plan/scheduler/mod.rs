//! [`Scheduler`]: decides, step by step, which tokens of which sequences are computed and where their K and V
//! go.
//!
//! Integers only: no tensor, no clock, no thread, no I/O. So a step is a pure function of the submitted
//! sequences, and every decision can be replayed in a test; see [`Scheduler::plan`]. Sequences are served in
//! rank order: higher priority first, then first come. Invariants: rows of a plan are in rank order, only a
//! sequence of lower rank (or one with a slow consumer) loses its pages to another, and the first in rank can
//! always continue; so everything submitted ends.
//!
//! `admission.rs` has admission and reuse, `sharing.rs` the division of a step, `commit.rs` the handling of
//! results.

pub(crate) mod adapters;
mod admission;
mod answers;
mod commit;
pub(crate) mod drafts;
pub(crate) mod held_prefix;
mod masking;
mod page_events;
mod pipeline;
mod revision;
mod sharing;
mod shift;
pub(crate) mod stored_prefix;

use std::collections::BTreeSet;

use tokenmill_backend::{ExecutorLimits, ForwardBatch, PAGE_TOKENS, PageGroup};

use crate::{
    arena::{Arena, SeqId},
    draft::{
        acceptance::Acceptance,
        answer_cache::AnswerCache,
        budget::{DraftBudget, DraftTimes},
        drafter::{DraftCounters, Drafter, Speculation},
    },
    pages::{events::PageEvent, group::Group, key::PrefixHasher, pool::PagePool},
    plan::{
        outcome::{End, Outcome},
        sequence::{Masking, MissReason, Rank, SeqSpec, Sequence, Stage, Work},
        step_plan::StepPlan,
    },
};

/// The configuration of a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Limits of the executor.
    pub limits: ExecutorLimits,
    /// Maximum sequences that take part in a step; clamped to the executor's limit.
    pub max_running: usize,
    /// Maximum tokens of a step; clamped to the executor's limit.
    pub max_step_tokens: usize,
    /// Separates models in the prefix cache: a hash of the weights and everything else that changes K and V.
    pub model_salt: u64,
    /// Whether and how sequences draft tokens.
    pub speculation: Speculation,
}

/// Limits for the work of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBudget {
    /// Maximum prefill tokens of a step in which some sequence decodes, or would if its mask were ready; at
    /// least 1 is used.
    pub prefill_beside_decode: usize,
    /// Times of a step with drafts. Without them, weighed drafts are empty.
    pub draft_times: Option<DraftTimes>,
    /// Whether it may have drafts. It may not while another step is in flight.
    pub may_draft: bool,
}

impl StepBudget {
    /// No limit except the size of a step.
    pub const FULL: Self = Self {
        prefill_beside_decode: usize::MAX,
        draft_times: None,
        may_draft: true,
    };
}

/// Counters of the scheduler since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounters {
    /// Steps planned with at least one row.
    pub steps: u64,
    /// Input tokens planned.
    pub planned_tokens: u64,
    /// Preempted sequences.
    pub preemptions: u64,
    /// Prompt tokens of sequences that began.
    pub prompt_tokens: u64,
    /// Prompt tokens from the prefix cache.
    pub cached_tokens: u64,
    /// Sequences that began, by reason why no more of them was cached, in the order of [`MissReason::ALL`].
    pub misses: [u64; MissReason::ALL.len()],
    /// Number of context shifts.
    pub context_shifts: u64,
    /// Tokens dropped by context shifts.
    pub dropped_tokens: u64,
    /// Sampling rows in completed steps. Each gave a token, or several with a draft, so generated tokens
    /// divided by this number are the tokens per sequence and step.
    pub sampling_rows: u64,
    /// Counters of all drafts.
    pub drafts: DraftCounters,
    /// Counters of a draft model's drafts.
    pub model_drafts: DraftCounters,
    /// Counters of drafts from an earlier answer to the same prompt.
    pub earlier_drafts: DraftCounters,
    /// Counters of drafts that a constraint forced.
    pub forced_drafts: DraftCounters,
}

/// Plans steps; see the module.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    /// Groups in the order of [`PageGroup::ALL`].
    groups: Vec<Group>,
    hasher: PrefixHasher,
    sequences: Arena<Sequence>,
    /// Running sequences by rank.
    running: Vec<SeqId>,
    /// Sequences that hold pages but take part in no step.
    paused: Vec<SeqId>,
    waiting: BTreeSet<(Rank, SeqId)>,
    deadlines: BTreeSet<(u64, SeqId)>,
    next_arrival: u64,
    /// Number of inputs that each of `running` may plan in this step.
    shares: Vec<usize>,
    /// Number of inputs that each of `running` has left to plan.
    wants: Vec<usize>,
    /// Acceptance rates of all sequences' drafts.
    acceptance: Acceptance,
    /// Earlier answers, for drafting the same ones again.
    answers: AnswerCache,
    counters: SchedulerCounters,
    /// Whether to read the hidden states of sequences that may have drafts.
    gives_hidden: bool,
    /// Changes of the prefix cache not taken yet, if they are recorded.
    page_events: Option<Vec<PageEvent>>,
}

impl Scheduler {
    /// Creates a scheduler with nothing to do.
    pub fn new(mut config: SchedulerConfig) -> Self {
        let limits = &config.limits;
        if limits.is_encoder {
            // The longest sequence is computed in one step.
            config.max_step_tokens = config.max_step_tokens.max(limits.n_ctx);
        }
        config.max_step_tokens = config.max_step_tokens.clamp(1, limits.max_batch_tokens.max(1));
        let n_states = if limits.n_states > 0 {
            limits.n_states
        } else {
            usize::MAX
        };
        config.max_running = config
            .max_running
            .min(n_states)
            .min(limits.max_batch_seqs)
            .min(limits.max_logit_rows)
            .clamp(1, config.max_step_tokens);
        Self {
            groups: Group::all(limits),
            hasher: PrefixHasher::new(config.model_salt),
            config,
            sequences: Arena::new(),
            running: Vec::new(),
            paused: Vec::new(),
            waiting: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            next_arrival: 0,
            shares: Vec::new(),
            wants: Vec::new(),
            acceptance: Acceptance::default(),
            answers: AnswerCache::default(),
            counters: SchedulerCounters::default(),
            gives_hidden: false,
            page_events: None,
        }
    }

    /// Adds a sequence; it waits until a plan admits it.
    ///
    /// # Panics
    /// If it has no token, or if a pool is too small for it.
    pub fn submit(&mut self, spec: SeqSpec) -> SeqId {
        assert!(!spec.tokens.is_empty(), "a sequence has a token");
        let longest = match spec.work {
            // The last sampled token is never an input.
            Work::Generate { max_len, .. } => match spec.context_shift {
                Some((_, n_ctx)) => spec.tokens.len().max(n_ctx.min(max_len) - 1),
                None => max_len - 1,
            },
            Work::Logits { .. } | Work::Hidden { .. } => spec.tokens.len(),
        };
        assert!(
            longest >= spec.tokens.len() && longest <= self.config.limits.n_ctx,
            "it fits the context"
        );
        assert!(
            (self.groups.iter()).all(|group| group.pages_needed(longest) <= group.pool.n_pages()),
            "it fits the pools"
        );

        let may_draft = self.speculates() && matches!(spec.work, Work::Generate { .. });
        let mut sequence = Sequence::new(spec, self.next_arrival);
        sequence.drafter = may_draft.then(|| Drafter::new(self.acceptance));
        // If drafts are weighed, each step decides whether to wait for them.
        let is_weighed = matches!(self.config.speculation, Speculation::Auto { .. });
        sequence.waits_for_newest = may_draft && (!is_weighed || sequence.masking != Masking::Off);
        self.next_arrival += 1;
        if sequence.is_to_shift() {
            let n_dropped = sequence.cut();
            self.counters.context_shifts += 1;
            self.counters.dropped_tokens += n_dropped as u64;
        }
        let leader = sequence
            .fork_of
            .filter(|&leader| self.sequences.get(leader).is_some());
        sequence.is_held = leader.is_some();
        let deadlines = [sequence.queue_deadline_us, sequence.deadline_us];
        let id = self.sequences.insert(sequence);
        self.deadlines
            .extend(deadlines.into_iter().flatten().map(|at| (at, id)));
        if let Some(leader) = leader {
            self.sequences[leader].followers.push(id);
        }
        self.queue_if_eligible(id);
        id
    }

    /// Plans the next step into `plan`, which is empty when nothing can be computed.
    pub fn plan(&mut self, budget: StepBudget, plan: &mut StepPlan) {
        plan.clear();
        self.admit(budget, plan);
        self.share_step(budget);
        let drafts = if budget.may_draft {
            self.draft_budget(&self.shares, budget.draft_times)
        } else {
            DraftBudget::NONE
        };
        self.fill_rows(drafts, plan);
        self.take_copies(plan);
    }

    /// Moves the page copies that the executor has to make into `plan`.
    pub(crate) fn take_copies(&mut self, plan: &mut StepPlan) {
        for (group, copies) in self.groups.iter_mut().zip(&mut plan.copies) {
            group.pool.take_copies(copies);
        }
    }

    /// Pauses or resumes a sequence, because its consumer is slow or has caught up. It keeps its pages while
    /// no other sequence needs them.
    pub fn set_paused(&mut self, id: SeqId, is_paused: bool) {
        let Some(sequence) = self.sequences.get_mut(id) else {
            return;
        };
        let rank = sequence.rank;
        if std::mem::replace(&mut sequence.wants_pause, is_paused) == is_paused {
            return;
        }
        match (sequence.stage, is_paused) {
            (Stage::Waiting, true) => {
                self.waiting.remove(&(rank, id));
            }
            (Stage::Waiting, false) => self.queue_if_eligible(id),
            (Stage::Running, true) => {
                self.leave_stage(id);
                self.sequences[id].stage = Stage::Paused;
                self.paused.push(id);
            }
            (Stage::Paused, false) if self.running.len() < self.config.max_running => {
                self.leave_stage(id);
                self.enter_running(id);
            }
            // Without a free slot in the batch it keeps its pages until there is one, see `Scheduler::admit`,
            // or until others need them.
            (Stage::Running | Stage::Paused, false) | (Stage::Paused, true) => {}
        }
    }

    /// Ends sequences past their deadlines.
    pub fn expire(&mut self, now_us: u64, outcomes: &mut Vec<Outcome>) {
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now_us
        {
            self.deadlines.pop_first();
            let Some(sequence) = self.sequences.get(id) else {
                continue;
            };
            if sequence.deadline_us.is_some_and(|deadline| deadline <= now_us) {
                self.end(id, End::DeadlineExceeded, outcomes);
            } else if sequence.stay == 0 {
                self.end(id, End::QueueTimeout, outcomes);
            }
        }
    }

    /// Returns the time at which [`Self::expire`] next has something to do.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    fn forget_deadlines(&mut self, id: SeqId, sequence: &Sequence) {
        for at in [sequence.queue_deadline_us, sequence.deadline_us]
            .into_iter()
            .flatten()
        {
            self.deadlines.remove(&(at, id));
        }
    }

    fn queue_if_eligible(&mut self, id: SeqId) {
        let sequence = &self.sequences[id];
        if sequence.is_eligible() {
            self.waiting.insert((sequence.rank, id));
        }
    }

    fn enter_running(&mut self, id: SeqId) {
        let rank = self.sequences[id].rank;
        let at = self
            .running
            .partition_point(|&other| self.sequences[other].rank < rank);
        self.running.insert(at, id);
        self.sequences[id].stage = Stage::Running;
    }

    /// Removes a sequence from the list of its stage.
    fn leave_stage(&mut self, id: SeqId) {
        let Sequence { stage, rank, .. } = self.sequences[id];
        match stage {
            Stage::Waiting => {
                self.waiting.remove(&(rank, id));
            }
            Stage::Running => {
                let at = self
                    .running
                    .partition_point(|&other| self.sequences[other].rank < rank);
                debug_assert_eq!(self.running[at], id);
                self.running.remove(at);
            }
            Stage::Paused => self.paused.retain(|&other| other != id),
        }
    }

    /// Releases the last page first, so that the end of a prefix is evicted before its beginning.
    fn release_pages(&mut self, id: SeqId) {
        self.release_states(id);
        for (group, pages) in self.groups.iter_mut().zip(&mut self.sequences[id].tables) {
            while let Some(page) = pages.pop() {
                if page != ForwardBatch::UNMAPPED_PAGE {
                    group.pool.release(page);
                }
            }
        }
    }

    /// Steps in flight write to these slots before later steps use them.
    fn release_states(&mut self, id: SeqId) {
        let sequence = &mut self.sequences[id];
        let slots = [
            sequence.state.take(),
            sequence.state_from.take(),
            sequence.spare.take(),
        ];
        for slot in slots.into_iter().flatten().chain(sequence.saves.drain(..)) {
            self.groups[0].pool.states.release(slot);
        }
    }

    /// Returns the known tokens of a sequence, oldest first; `None` once it has ended.
    pub fn tokens_of(&self, id: SeqId) -> Option<&[u32]> {
        self.sequences.get(id).map(|sequence| &sequence.tokens[..])
    }

    /// Returns how many tokens of a sequence came from the prefix cache when it began.
    pub(crate) fn n_cached(&self, id: SeqId) -> usize {
        self.sequences.get(id).map_or(0, |sequence| sequence.n_cached)
    }

    /// Returns how many tokens at the end of a sequence were generated.
    pub fn n_generated(&self, id: SeqId) -> usize {
        self.sequences.get(id).map_or(0, Sequence::n_generated)
    }

    /// Returns the page table of a sequence in a group; `None` once it has ended.
    pub fn pages_of(&self, id: SeqId, group: PageGroup) -> Option<&[u32]> {
        let sequence = self.sequences.get(id)?;
        Some(&sequence.tables[group.index()])
    }

    /// Returns whether no sequence is left.
    pub fn is_empty(&self) -> bool {
        self.sequences.len() == 0
    }

    /// Returns the number of sequences that take part in steps.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Returns the number of sequences that hold pages while their consumer catches up.
    pub fn n_paused(&self) -> usize {
        self.paused.len()
    }

    /// Returns the number of sequences that hold no pages.
    pub fn n_waiting(&self) -> usize {
        self.sequences.len() - self.running.len() - self.paused.len()
    }

    /// Returns the number of running sequences for which the next step would compute one token.
    pub fn n_decoding(&self) -> usize {
        self.running
            .iter()
            .filter(|&&id| self.sequences[id].n_to_plan() == 1)
            .count()
    }

    /// Returns the number of sequences in prefill, or waiting for one of the free slots in the batch. For the
    /// latter, pages are not checked.
    pub fn n_prompts(&self) -> usize {
        let n_begun = self
            .running
            .iter()
            .filter(|&&id| self.sequences[id].n_to_plan() > 1)
            .count();
        let n_seats = self.config.max_running - self.running.len();
        n_begun + self.waiting.len().min(n_seats)
    }

    /// Returns the configuration, clamped to the executor's limits.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Returns the page pool of the main group.
    pub fn pool(&self) -> &PagePool {
        &self.groups[0].pool
    }

    /// Returns the page pool of the layers with a window, if they have a separate group.
    pub fn window_pool(&self) -> Option<&PagePool> {
        self.groups.get(1).map(|group| &group.pool)
    }

    /// Returns the counters.
    pub fn counters(&self) -> SchedulerCounters {
        self.counters
    }

    /// Empties the prefix cache, because its pages are invalid, and drops the kept answers.
    pub fn forget_cache(&mut self) {
        self.answers.forget_all();
        self.collect_page_events();
        for group in &mut self.groups {
            group.pool.forget_all();
        }
        if let Some(events) = &mut self.page_events {
            events.push(PageEvent::Cleared);
        }
    }

    /// Checks every invariant.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn assert_consistent(&self) {
        self.answers.assert_consistent();
        for (group_idx, group) in self.groups.iter().enumerate() {
            let tables = self
                .sequences
                .iter()
                .map(|(_, sequence)| &sequence.tables[group_idx][..]);
            group.pool.assert_consistent(tables);
        }
        let sequences = self.sequences.iter().map(|(_, sequence)| sequence);
        self.groups[0]
            .pool
            .states
            .assert_consistent(sequences.flat_map(|sequence| {
                let slots = [sequence.state, sequence.state_from, sequence.spare];
                slots.into_iter().flatten().chain(sequence.saves.iter().copied())
            }));
        assert!(
            self.running.is_sorted_by_key(|&id| self.sequences[id].rank),
            "running is in the order of rank"
        );
        for (id, sequence) in self.sequences.iter() {
            assert!(
                sequence.n_committed <= sequence.n_planned,
                "{id} commits what it planned"
            );
            assert!(
                sequence.n_planned <= sequence.n_inputs(),
                "{id} plans inputs it has"
            );
            let mut tables = sequence.tables[..self.groups.len()].iter();
            assert!(
                tables.all(|pages| sequence.n_planned <= pages.len() * PAGE_TOKENS),
                "{id} has pages for its plan"
            );
            let is_listed = match sequence.stage {
                Stage::Waiting => self.waiting.contains(&(sequence.rank, id)) == sequence.is_eligible(),
                Stage::Running => self.running.contains(&id),
                Stage::Paused => self.paused.contains(&id),
            };
            assert!(is_listed, "{id} is on the list of its stage");
            assert!(
                sequence.stage != Stage::Waiting
                    || (sequence.tables.iter().all(Vec::is_empty) && sequence.state.is_none()),
                "{id} waits without pages"
            );
        }
    }
}

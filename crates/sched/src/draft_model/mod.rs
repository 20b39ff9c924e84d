//! [`DraftModel`]: a second, smaller model that predicts the tokens of the first.
//!
//! The core asks it before a step is planned. It has its own executor and scheduler: pages, prefix cache and
//! states like the first model, and one sequence for each that it drafts for, idle between two drafts. Draft
//! tokens that were not sampled are removed by revision (`plan/scheduler/revision.rs`). Draft tokens are sampled with the
//! parameters and the random key of the tokens that they predict, so they agree as often as the two models
//! do.
//!
//! Invariant: it never changes what is generated. On failure there are no more drafts: none for a sequence
//! with a failed row, and none at all after [`MAX_BAD_ROWS`].

pub(crate) mod hidden_states;
pub(crate) mod ledger;
pub(crate) mod pass_times;
pub(crate) mod worth;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use tokenmill_backend::{Executor, ForwardBatch, PageGroup, SamplingParams, StepError, StepOutput};

use crate::{
    arena::SeqId,
    draft::{
        budget::ONE,
        drafter::Speculation,
        tokens::{Class, Draft},
    },
    draft_model::{
        hidden_states::{HiddenStates, hidden_states_bytes},
        ledger::DraftLedger,
        pass_times::{PassTimes, is_drafting},
        worth::WeighedStep,
    },
    plan::{
        batch::build_batch,
        outcome::{End, Outcome, RowResult},
        scheduler::{Scheduler, SchedulerConfig, StepBudget, drafts::Want},
        sequence::{SeqSpec, Work},
        step_plan::{PlannedOutput, PlannedRow, StepPlan},
    },
};

/// Maximum tokens of a pass, so that a prompt computed for drafts delays no caller for long.
const MAX_PASS_TOKENS: usize = 128;

/// Number of consecutive failed rows, each of another sequence, after which the model is disabled.
const MAX_BAD_ROWS: u32 = 8;

/// Without measured times, a draft ends if the probability that it is right up to there falls below one in this many.
const ONE_IN: u64 = 4;

/// A sequence that asks the draft model.
pub(crate) struct Seat<'a> {
    pub(crate) want: Want,
    pub(crate) tokens: &'a [u32],
    /// Number of the answer's tokens at the end of `tokens`. After a shift of the context, `tokens` may hold fewer.
    pub(crate) n_generated: usize,
    pub(crate) uses_prefix_cache: bool,
    pub(crate) salt: u64,
    pub(crate) sampling: &'a Arc<SamplingParams>,
}

/// A draft in progress.
struct OpenDraft {
    want: Want,
    /// Its sequence in this model.
    seq: SeqId,
    draft: Draft,
    /// Probability that the whole draft so far is right, in 1/65536.
    reach: u64,
    is_open: bool,
}

/// The draft model; see the module.
pub(crate) struct DraftModel {
    executor: Box<dyn Executor>,
    scheduler: Scheduler,
    /// The hidden states that it reads besides tokens, if it is an MTP layer of the first model.
    hidden: Option<HiddenStates>,
    /// The sequence here for each of the first model's.
    lanes: HashMap<SeqId, SeqId>,
    /// Sampling parameters of each sequence here.
    params: HashMap<SeqId, Arc<SamplingParams>>,
    /// Maximum inputs of a sequence.
    longest: usize,
    times: PassTimes,
    /// Its gains and losses.
    ledger: DraftLedger,
    has_failed: bool,
    /// Sequences of the first model without drafts, because a row here failed.
    refused: HashSet<SeqId>,
    /// Number of consecutive failed rows.
    n_bad_rows: u32,
    /// Total number of failed rows.
    failed_rows: u64,

    // Buffers that drafts reuse.
    drafts: Vec<OpenDraft>,
    batch: ForwardBatch,
    plan: StepPlan,
    output: StepOutput,
    results: Vec<RowResult>,
    outcomes: Vec<Outcome>,
}

impl DraftModel {
    pub(crate) fn new(executor: Box<dyn Executor>, model_salt: u64) -> Self {
        let limits = executor.limits().clone();
        let hidden = executor.reads_hidden().then(|| {
            let max_bytes = hidden_states_bytes(limits.n_ctx, limits.max_batch_seqs, limits.n_embd);
            HiddenStates::new(limits.n_embd, max_bytes)
        });
        let pools = limits.groups().map(|(_, group)| group);
        let in_pools = pools
            .filter(|group| crate::pages::group::pages_needed(group, limits.n_ctx) > group.n_pages)
            .map(|group| group.n_pages * tokenmill_backend::PAGE_TOKENS)
            .min();
        Self {
            longest: in_pools.map_or(limits.n_ctx, |n_tokens| n_tokens.min(limits.n_ctx)),
            scheduler: Scheduler::new(SchedulerConfig {
                max_running: limits.max_batch_seqs,
                max_step_tokens: MAX_PASS_TOKENS.max(limits.max_batch_seqs),
                limits,
                model_salt,
                speculation: Speculation::Off,
            }),
            executor,
            ledger: DraftLedger::new(hidden.is_some()),
            hidden,
            lanes: HashMap::new(),
            params: HashMap::new(),
            times: PassTimes::default(),
            has_failed: false,
            refused: HashSet::new(),
            n_bad_rows: 0,
            failed_rows: 0,
            drafts: Vec::new(),
            batch: ForwardBatch::default(),
            plan: StepPlan::default(),
            output: StepOutput::default(),
            results: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// Returns whether the model is still in use.
    pub(crate) fn works(&self) -> bool {
        !self.has_failed
    }

    /// Returns the width of the hidden states that it reads, if it reads any.
    pub(crate) fn hidden_width(&self) -> Option<usize> {
        self.hidden
            .as_ref()
            .map(|_| self.scheduler.config().limits.n_embd)
    }

    /// Returns whether it currently stores hidden states.
    pub(crate) fn keeps_hidden(&self) -> bool {
        self.hidden.is_some() && !self.has_failed && self.ledger.keeps_states()
    }

    /// Returns its gains and losses, if drafts are weighed.
    pub(crate) fn ledger(&self) -> &DraftLedger {
        &self.ledger
    }

    /// Returns its gains and losses, to book more.
    pub(crate) fn ledger_mut(&mut self) -> &mut DraftLedger {
        &mut self.ledger
    }

    /// Announces that a sequence of `n_tokens` tokens is about to begin.
    pub(crate) fn expect(&mut self, n_tokens: usize) {
        let pass_us = self.times.drafting(1).unwrap_or(0);
        let cost_us = self.probe_us(n_tokens as u64, pass_us);
        self.ledger.begin(cost_us);
    }

    /// Stores the hidden states after a sequence's inputs from `first` on.
    pub(crate) fn take_hidden(&mut self, seq: SeqId, first: usize, rows: &[f32]) {
        let keeps_hidden = self.keeps_hidden();
        if let Some(hidden) = self.hidden.as_mut().filter(|_| keeps_hidden) {
            hidden.give(seq, first, rows);
        }
    }

    /// Returns the number of failed rows.
    pub(crate) fn failed_rows(&self) -> u64 {
        self.failed_rows
    }

    /// Predicts the tokens that follow each seat's, as long as that pays, and returns the drafts. Without a weighed step, it
    /// continues as long as the draft is likely. Returns how long passes took that computed prompts, in microseconds, if there
    /// was any pass.
    pub(crate) fn draft(
        &mut self,
        seats: &[Seat<'_>],
        mut step: Option<WeighedStep>,
        clock: &dyn Fn() -> u64,
        take: &mut dyn FnMut(SeqId, Draft),
    ) -> Option<u64> {
        if let Some(step) = &step
            && !self.is_worth_a_draft(seats, step)
        {
            return None;
        }
        self.open(seats, step.as_ref());
        if let Some(step) = step.as_ref().filter(|_| self.n_open() == 0) {
            self.ledger.note_no_pass(step.n_rows);
        }
        let mut prompt_us = None;
        while let Some(pass_time) = self.is_worth_a_pass(step.as_ref()) {
            let prompt_us = prompt_us.get_or_insert(0);
            if let Some(step) = &mut step {
                step.budget.take(self.n_open(), 1, 0, pass_time);
            }
            if self.pass(clock, prompt_us).is_err() {
                self.fail();
                break;
            }
            self.extend(step.as_mut());
        }
        for OpenDraft { want, seq, draft, .. } in self.drafts.drain(..) {
            self.scheduler.set_paused(seq, true);
            if let Some(hidden) = &mut self.hidden
                && self.scheduler.n_computed(seq) >= draft.at
            {
                // The next input that it computes follows the tokens known now.
                hidden.drop_before(want.seq, draft.at - 1);
            }
            if !draft.tokens.is_empty() && !self.has_failed {
                take(want.seq, draft);
            }
        }
        prompt_us
    }

    /// Drops a sequence that has ended.
    pub(crate) fn forget(&mut self, seq: SeqId) {
        self.ledger.end_rest();
        self.refused.remove(&seq);
        if let Some(hidden) = &mut self.hidden {
            hidden.forget(seq);
        }
        if let Some(own) = self.lanes.remove(&seq) {
            self.params.remove(&own);
            if let Some(hidden) = &mut self.hidden {
                hidden.forget_own(own);
            }
            self.scheduler.end(own, End::Cancelled, &mut self.outcomes);
            self.outcomes.clear();
        }
    }

    fn n_open(&self) -> usize {
        self.drafts.iter().filter(|draft| draft.is_open).count()
    }

    /// Catches up the sequences of seats and lets them take part, unless that is pointless.
    fn open(&mut self, seats: &[Seat<'_>], step: Option<&WeighedStep>) {
        self.drafts.clear();
        for seat in seats {
            if self.refused.contains(&seat.want.seq) {
                continue;
            }
            let n_tokens = seat.tokens.len();
            let max_draft = seat.want.max_draft.min(self.longest.saturating_sub(n_tokens));
            let n_vocab = self.scheduler.config().limits.n_vocab as u32;
            if max_draft == 0 || seat.tokens.iter().any(|&id| id >= n_vocab) {
                self.forget(seat.want.seq);
                continue;
            }
            if let Some(step) = step
                && !self.may_catch_up(seat, step)
            {
                continue;
            }
            let seq = self.sit_down(seat);
            if let Some(hidden) = &mut self.hidden {
                hidden.begin(seq, n_tokens);
            }
            self.scheduler.set_paused(seq, false);
            self.drafts.push(OpenDraft {
                want: Want {
                    max_draft,
                    ..seat.want
                },
                seq,
                draft: Draft::at(n_tokens),
                reach: ONE,
                is_open: true,
            });
        }
    }

    /// Returns the sequence of a seat, updated to the seat's tokens.
    fn sit_down(&mut self, seat: &Seat<'_>) -> SeqId {
        let own = self.sequence_of(seat);
        // Penalties that count only the answer must count the same tokens here.
        let n_given = seat.tokens.len().saturating_sub(seat.n_generated);
        self.scheduler.set_n_given(own, n_given);
        own
    }

    fn sequence_of(&mut self, seat: &Seat<'_>) -> SeqId {
        if let Some(&own) = self.lanes.get(&seat.want.seq) {
            if let Some(hidden) = &self.hidden {
                // Draft tokens computed from the layer's own states are computed again from the real ones.
                let n_sure = hidden.n_sure(own) + 1;
                self.scheduler
                    .revise(own, &seat.tokens[..n_sure.min(seat.tokens.len())]);
            }
            self.scheduler.revise(own, seat.tokens);
            return own;
        }
        let n_vocab = self.scheduler.config().limits.n_vocab;
        let likeliest = SamplingParams::default();
        // The model cannot weigh tokens beyond its vocabulary.
        let own = Some(&**seat.sampling).filter(|params| params.validate(n_vocab).is_ok());
        let params = SamplingParams {
            n_logprobs: Some(0),
            scores_draw: false,
            ..own.unwrap_or(&likeliest).clone()
        };
        let seq = self.scheduler.submit(SeqSpec {
            tokens: seat.tokens.to_vec(),
            work: Work::Generate {
                max_len: self.longest + 1,
                stop_tokens: Arc::from([]),
            },
            priority: 0,
            uses_prefix_cache: seat.uses_prefix_cache,
            salt: seat.salt,
            adapter: None,
            queue_deadline_us: None,
            deadline_us: None,
            is_constrained: false,
            sampling_key: None,
            media: Arc::from([]),
            context_shift: None,
            fork_of: None,
        });
        self.lanes.insert(seat.want.seq, seq);
        self.params.insert(seq, Arc::new(params));
        seq
    }

    /// Runs one pass: a token for each sequence that is caught up, and a part of the others' missing tokens.
    fn pass(&mut self, clock: &dyn Fn() -> u64, prompt_us: &mut u64) -> Result<(), StepError> {
        let begun_us = clock();
        self.outcomes.clear();
        self.output.clear();
        self.scheduler.plan(StepBudget::FULL, &mut self.plan);
        for (group, copies) in PageGroup::ALL.into_iter().zip(&self.plan.copies) {
            if !copies.is_empty() {
                self.executor.copy_pages(group, copies)?;
            }
        }
        if self.plan.is_empty() {
            return Ok(());
        }
        let params_of = |row: &PlannedRow, _: u32| Arc::clone(&self.params[&row.seq]);
        build_batch(
            &self.scheduler,
            &self.plan,
            params_of,
            |_, _| None,
            |_| &[],
            &mut self.batch,
        );
        self.add_hidden();
        let ticket = self.executor.submit(&self.batch)?;
        self.executor.wait(ticket, &mut self.output)?;
        self.keep_hidden();
        self.results.clear();
        self.results.extend(self.plan.rows.iter().map(|row| {
            if row.output != PlannedOutput::Sample {
                return RowResult::Advanced;
            }
            match self.output.sampled[row.first_logit_row as usize] {
                Some(Ok(token)) => RowResult::Token(token.id),
                _ => RowResult::Failed,
            }
        }));
        self.scheduler
            .commit(&self.plan, &self.results, &mut self.outcomes);
        let us = clock().saturating_sub(begun_us);
        let (n_seqs, n_tokens) = (self.plan.rows.len(), self.plan.n_tokens());
        self.times.observe(n_seqs, n_tokens, us);
        if !is_drafting(n_seqs, n_tokens) {
            *prompt_us += us;
        }
        Ok(())
    }

    /// Adds to the batch the hidden states that its inputs need, and requests those that the next pass needs.
    fn add_hidden(&mut self) {
        let Some(hidden) = &self.hidden else {
            return;
        };
        for row in &self.plan.rows {
            let draft = self.drafts.iter().find(|draft| draft.seq == row.seq);
            let draft = draft.expect("only sequences of drafts are planned");
            for position in row.first_position..row.end() {
                let state = hidden.before(draft.want.seq, row.seq, position as usize);
                self.batch.hidden_inputs.extend_from_slice(state);
            }
        }
        let Self { batch, .. } = self;
        batch.hidden_rows.extend_from_slice(&batch.logit_rows);
    }

    /// Stores the layer's own states after the rows of a pass that sampled.
    fn keep_hidden(&mut self) {
        let Some(hidden) = &mut self.hidden else {
            return;
        };
        let width = self.scheduler.config().limits.n_embd;
        for row in (self.plan.rows.iter()).filter(|row| row.output == PlannedOutput::Sample) {
            let start = row.first_logit_row as usize * width;
            let state = &self.output.hidden[start..start + width];
            hidden.note(row.seq, row.end() as usize - 1, state);
        }
    }

    /// Appends a pass's draft tokens. Sequences that it did not extend rest until the next draft.
    fn extend(&mut self, mut step: Option<&mut WeighedStep>) {
        for open in &mut self.drafts {
            let token = self.outcomes.iter().find_map(|outcome| match *outcome {
                Outcome::Token { seq, logit_row, id } if seq == open.seq => Some((logit_row, id)),
                _ => None,
            });
            open.is_open &= token.is_some();
            if let Some((logit_row, id)) = token {
                let sampled = self.output.sampled[logit_row as usize].and_then(Result::ok);
                let logprob = sampled.and_then(|sampled| sampled.logprob);
                let class = Class::of_probability(logprob.map_or(0.0, f32::exp));
                open.draft.push(id, class);
                open.reach = open.reach * open.want.acceptance.of(class) / ONE;
                if let Some(step) = &mut step {
                    step.budget.gain(open.reach);
                } else {
                    open.is_open &= open.reach * ONE_IN >= ONE;
                }
                open.is_open &= open.draft.tokens.len() < open.want.max_draft;
            }
            if !open.is_open {
                self.scheduler.set_paused(open.seq, true);
            }
        }
        self.refuse_ended();
    }

    /// Stops drafting for sequences whose rows failed. If all logits are non-finite, the model is useless.
    fn refuse_ended(&mut self) {
        let outcomes = self.outcomes.iter();
        let n_ended = outcomes
            .filter(|outcome| matches!(outcome, Outcome::Ended { .. }))
            .count() as u32;
        if n_ended == 0 {
            if !self.outcomes.is_empty() {
                self.n_bad_rows = 0;
            }
            return;
        }
        self.n_bad_rows = self.n_bad_rows.saturating_add(n_ended);
        self.failed_rows += u64::from(n_ended);
        let (scheduler, refused, hidden) = (&self.scheduler, &mut self.refused, &mut self.hidden);
        self.lanes.retain(|&seq, own| {
            let is_alive = scheduler.tokens_of(*own).is_some();
            if !is_alive {
                refused.insert(seq);
                if let Some(hidden) = hidden.as_mut() {
                    hidden.forget_own(*own);
                }
            }
            is_alive
        });
        self.params.retain(|&own, _| scheduler.tokens_of(own).is_some());
        (self.drafts).retain(|draft| scheduler.tokens_of(draft.seq).is_some());
        if self.n_bad_rows >= MAX_BAD_ROWS {
            self.fail();
        }
    }

    /// Disables the draft model; the first model continues alone.
    fn fail(&mut self) {
        self.has_failed = true;
        self.scheduler.fail_step(&self.plan, &mut self.outcomes);
        for (_, own) in self.lanes.drain() {
            self.scheduler.end(own, End::StepFailed, &mut self.outcomes);
        }
        self.params.clear();
        if let Some(hidden) = &mut self.hidden {
            hidden.clear();
        }
        self.refused.clear();
        self.scheduler.forget_cache();
        self.outcomes.clear();
    }

    /// Checks every invariant.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(test)]
    pub(crate) fn assert_consistent(&self) {
        self.scheduler.assert_consistent();
        assert_eq!(self.scheduler.n_running(), 0, "it rests between two drafts");
        assert!(
            self.lanes
                .values()
                .all(|&own| self.scheduler.tokens_of(own).is_some())
        );
        assert_eq!(self.lanes.len(), self.params.len());
        if let Some(hidden) = &self.hidden {
            assert!(
                hidden.in_use().1 <= self.lanes.len(),
                "states of what it has forgotten"
            );
        }
    }

    /// Returns the number of sequences that it knows, refuses or stores hidden states of, and the number of pages that they hold.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let window = self.scheduler.window_pool();
        let n_window = window.map_or(0, crate::pages::pool::PagePool::n_in_use);
        let n_given = self.hidden.as_ref().map_or(0, |hidden| hidden.in_use().0);
        (
            self.lanes.len() + self.refused.len() + n_given,
            self.scheduler.pool().n_in_use() + n_window,
        )
    }
}

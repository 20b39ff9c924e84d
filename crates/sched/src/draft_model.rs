//! [`DraftModel`]: a second, smaller model that guesses what the first will say.
//!
//! Separate from the core, which asks it before a step is planned. It has an executor and a scheduler of its own: pages, prefix
//! cache and states as the first model has them, and a sequence for each that it guesses for, which rests between two drafts. What was
//! guessed and not sampled is revised away (`revise.rs`). Guesses are sampled with the parameters and the random key of the token that they
//! guess, so that they agree with it as often as the two models do.
//!
//! Invariant: nothing it does changes what is generated; where it fails, there are no guesses any more: for a sequence whose row
//! failed, and for none after [`MAX_BAD_ROWS`].

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use tokenmill_backend::{Executor, ForwardBatch, PageGroup, SamplingParams, StepError, StepOutput};

use crate::{
    arena::SeqId,
    batch_builder::build_batch,
    draft_ledger::PAID_SHARE,
    draft_plan::Want,
    draft_times::ONE,
    draft_trials::{Trials, Unpaid},
    drafting::Speculation,
    hidden_states::{HiddenStates, hidden_states_bytes},
    model_guess::{ModelGuess, Weighing, class_of},
    outcome::{End, Outcome, RowResult},
    pass_times::{PassTimes, Passes, is_guessing},
    plan::{PlannedOutput, PlannedRow, StepPlan},
    scheduler::{Scheduler, SchedulerConfig, StepBudget},
    sequence::{SeqSpec, Work},
};

/// Tokens of a pass at most, so that a prompt that is computed for drafts holds no one up for long.
const MAX_PASS_TOKENS: usize = 128;

/// Rows that fail one after another, each of another sequence, until the model is held to be of no use.
const MAX_BAD_ROWS: u32 = 8;

/// Without times to weigh, a draft ends where it is less likely than one in so many to be right up to there.
const ONE_IN: u64 = 4;

/// Before a pass was measured: it takes this part of a step of the first model, and this many microseconds.
const UNMEASURED_DIVISOR: u64 = 8;
const UNMEASURED_US: u64 = 50;

/// Tokens that an answer is expected to have at most, where it is weighed whether computing its prompt for drafts pays.
const MAX_EXPECTED_TOKENS: usize = 512;

/// A sequence as the drafting model sees it.
pub(crate) struct Seat<'a> {
    pub(crate) want: Want,
    pub(crate) tokens: &'a [u32],
    /// Number of the answer's tokens, which end `tokens`. After a shift of the context, `tokens` may hold fewer.
    pub(crate) n_generated: usize,
    pub(crate) uses_prefix_cache: bool,
    pub(crate) salt: u64,
    pub(crate) sampling: &'a Arc<SamplingParams>,
}

/// A draft that is being made.
struct Draft {
    want: Want,
    /// Its sequence here.
    seq: SeqId,
    guess: ModelGuess,
    /// The likelihood that it is right up to its end, in 1/65536.
    reach: u64,
    is_open: bool,
}

/// The drafting model; see the module.
pub(crate) struct DraftModel {
    executor: Box<dyn Executor>,
    scheduler: Scheduler,
    /// What it reads besides tokens, where it is a layer of the first model.
    hidden: Option<HiddenStates>,
    /// The sequence here for each of the first model's.
    lanes: HashMap<SeqId, SeqId>,
    /// How a sequence here samples.
    params: HashMap<SeqId, Arc<SamplingParams>>,
    /// Inputs that a sequence may have.
    longest: usize,
    times: PassTimes,
    trials: Trials,
    has_failed: bool,
    /// Sequences of the first model for which nothing is guessed, since a row here failed.
    refused: HashSet<SeqId>,
    /// Rows that failed since one that did not.
    n_bad_rows: u32,
    /// Rows that failed in all.
    failed_rows: u64,

    // Reused from draft to draft.
    drafts: Vec<Draft>,
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
            .filter(|group| crate::group::pages_needed(group, limits.n_ctx) > group.n_pages)
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
            trials: Trials::new(hidden.is_some()),
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

    /// Whether it still guesses.
    pub(crate) fn works(&self) -> bool {
        !self.has_failed
    }

    /// The width of the hidden states that it reads, where it reads any.
    pub(crate) fn hidden_width(&self) -> Option<usize> {
        self.hidden
            .as_ref()
            .map(|_| self.scheduler.config().limits.n_embd)
    }

    /// Whether it takes hidden states now.
    pub(crate) fn keeps_hidden(&self) -> bool {
        self.hidden.is_some() && !self.has_failed && self.trials.keeps_states()
    }

    /// Whether there is nothing to ask it before a step of `n_rows` rows, where drafts are weighed: they did not pay just now.
    pub(crate) fn rests(&mut self, n_rows: usize) -> bool {
        self.trials.rests(n_rows)
    }

    /// Whether [`Self::rests`] would say so of a step of some size.
    pub(crate) fn is_resting(&self) -> bool {
        self.trials.is_resting()
    }

    /// A sequence of `n_tokens` tokens is about to begin.
    pub(crate) fn expect(&mut self, n_tokens: usize) {
        let pass_us = self.times.guessing(1).unwrap_or(0);
        let cost_us = self.trial_us(n_tokens as u64, pass_us);
        self.trials.begin(cost_us);
    }

    /// Takes the hidden states behind inputs of a sequence from `first` on.
    pub(crate) fn take_hidden(&mut self, seq: SeqId, first: usize, rows: &[f32]) {
        let keeps_hidden = self.keeps_hidden();
        if let Some(hidden) = self.hidden.as_mut().filter(|_| keeps_hidden) {
            hidden.give(seq, first, rows);
        }
    }

    /// Rows that failed.
    pub(crate) fn failed_rows(&self) -> u64 {
        self.failed_rows
    }

    /// Guesses what follows the tokens of each seat, as far as that pays, and hands the guesses out. Without `weighing`, as far as it
    /// is likely. Returns what it computed, if anything.
    pub(crate) fn guess(
        &mut self,
        seats: &[Seat<'_>],
        mut weighing: Option<Weighing>,
        clock: &dyn Fn() -> u64,
        take: &mut dyn FnMut(SeqId, ModelGuess),
    ) -> Option<Passes> {
        if let Some(weighing) = &weighing
            && !self.is_worth_a_draft(seats, weighing)
        {
            return None;
        }
        self.open(seats, weighing.as_ref());
        if self.n_open() == 0 {
            self.trials.note_no_pass();
        }
        let mut passes = None;
        while let Some(pass_us) = self.is_worth_a_pass(weighing.as_ref()) {
            let passes = passes.get_or_insert_with(Passes::default);
            if let Some(weighing) = &mut weighing {
                weighing.take(self.n_open(), pass_us);
            }
            if self.pass(clock, passes).is_err() {
                self.fail();
                break;
            }
            self.extend(weighing.as_mut());
        }
        for Draft { want, seq, guess, .. } in self.drafts.drain(..) {
            self.scheduler.set_paused(seq, true);
            if let Some(hidden) = &mut self.hidden
                && self.scheduler.n_computed(seq) >= guess.at
            {
                // The next input that it computes is the one behind those that are known now.
                hidden.drop_before(want.seq, guess.at - 1);
            }
            if !guess.tokens.is_empty() && !self.has_failed {
                take(want.seq, guess);
            }
        }
        passes
    }

    /// Forgets a sequence that has ended.
    pub(crate) fn forget(&mut self, seq: SeqId) {
        self.trials.end_rest();
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

    /// Brings the sequences of seats up to date and lets them take part, unless there is no use in it.
    fn open(&mut self, seats: &[Seat<'_>], weighing: Option<&Weighing>) {
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
            if let Some(weighing) = weighing
                && !self.may_catch_up(seat, weighing)
            {
                continue;
            }
            let seq = self.sit_down(seat);
            if let Some(hidden) = &mut self.hidden {
                hidden.begin(seq, n_tokens);
            }
            self.scheduler.set_paused(seq, false);
            self.drafts.push(Draft {
                want: Want {
                    max_draft,
                    ..seat.want
                },
                seq,
                guess: ModelGuess {
                    at: n_tokens,
                    ..ModelGuess::default()
                },
                reach: ONE,
                is_open: true,
            });
        }
    }

    /// Whether computing what is missing of a sequence may pay in the rest of its answer.
    fn may_catch_up(&self, seat: &Seat<'_>, weighing: &Weighing) -> bool {
        let n_missing = self.n_missing(seat);
        let n_expected = seat.want.n_left.min(MAX_EXPECTED_TOKENS) as u64;
        // Its part of the steps that it takes part in.
        let answer_us = n_expected * weighing.step_us / weighing.n_rows as u64;
        n_missing * self.times.token.unwrap_or(0) <= answer_us / PAID_SHARE
    }

    /// The sequence of a seat, with its tokens.
    fn sit_down(&mut self, seat: &Seat<'_>) -> SeqId {
        let own = self.sequence_of(seat);
        // Penalties that count only the answer count the same tokens here.
        let n_given = seat.tokens.len().saturating_sub(seat.n_generated);
        self.scheduler.set_n_given(own, n_given);
        own
    }

    fn sequence_of(&mut self, seat: &Seat<'_>) -> SeqId {
        if let Some(&own) = self.lanes.get(&seat.want.seq) {
            if let Some(hidden) = &self.hidden {
                // What it guessed with states of its own is computed again with those that came since.
                let n_sure = hidden.n_sure(own) + 1;
                self.scheduler
                    .revise(own, &seat.tokens[..n_sure.min(seat.tokens.len())]);
            }
            self.scheduler.revise(own, seat.tokens);
            return own;
        }
        let n_vocab = self.scheduler.config().limits.n_vocab;
        let likeliest = SamplingParams::default();
        // Tokens that this model does not have cannot be weighed by it.
        let own = Some(&**seat.sampling).filter(|params| params.validate(n_vocab).is_ok());
        let params = SamplingParams {
            n_logprobs: Some(0),
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
            manner: None,
            media: Arc::from([]),
            context_shift: None,
            fork_of: None,
        });
        self.lanes.insert(seat.want.seq, seq);
        self.params.insert(seq, Arc::new(params));
        seq
    }

    /// How long a pass that guesses for so many sequences takes. Before one was measured it is said to take a part of a step, and what
    /// waking threads takes.
    fn pass_us(&self, n_seqs: usize, weighing: &Weighing) -> u64 {
        let measured = self.times.guessing(n_seqs);
        measured.unwrap_or(weighing.step_us / UNMEASURED_DIVISOR + UNMEASURED_US)
    }

    /// Whether to begin drafts: their first pass pays, or it does not as far as is known, and it is time to try it all the same. Nothing
    /// is computed, and no sequence is brought up to date, where it is not.
    fn is_worth_a_draft(&mut self, seats: &[Seat<'_>], weighing: &Weighing) -> bool {
        let n_seats = seats.len();
        let pass_us = self.pass_us(n_seats, weighing);
        let gain = seats.iter().map(|seat| seat.want.acceptance.of_any()).sum();
        if weighing.pays(n_seats, gain, pass_us) {
            self.trials.note_paying();
            return true;
        }
        let n_missing = seats.iter().map(|seat| self.n_missing(seat)).sum();
        let cost_us = self.trial_us(n_missing, pass_us);
        let best = seats.iter().map(|seat| seat.want.acceptance.of_any()).max();
        let is_due = self.trials.is_due(&Unpaid {
            n_rows: weighing.n_rows,
            step_us: weighing.step_us,
            cost_us,
            catches_up: n_missing > 2 * n_seats as u64,
            is_hopeful: weighing.may_pay_alone(best.unwrap_or(0), self.pass_us(1, weighing)),
        });
        if let Some(hidden) = self.hidden.as_mut().filter(|_| !self.trials.keeps_states()) {
            hidden.drop_given();
        }
        is_due
    }

    /// What it takes to try a draft for sequences that lack so many tokens, where a pass takes `pass_us`.
    fn trial_us(&self, n_missing: u64, pass_us: u64) -> u64 {
        let token_us = self.times.token.unwrap_or(pass_us / UNMEASURED_DIVISOR);
        n_missing.saturating_mul(token_us).saturating_add(2 * pass_us)
    }

    /// Tokens of a seat that are not computed here.
    fn n_missing(&self, seat: &Seat<'_>) -> u64 {
        let n_computed = (self.lanes.get(&seat.want.seq)).map_or(0, |&own| self.scheduler.n_computed(own));
        seat.tokens.len().saturating_sub(n_computed) as u64
    }

    /// Decides about the next pass of a draft; returns how long it is expected to take, where it is made.
    fn is_worth_a_pass(&self, weighing: Option<&Weighing>) -> Option<u64> {
        let n_open = self.n_open();
        if n_open == 0 || self.has_failed {
            return None;
        }
        let Some(weighing) = weighing else {
            return Some(0);
        };
        let pass_us = self.pass_us(n_open, weighing);
        if self.drafts.iter().all(|draft| draft.guess.tokens.is_empty()) {
            return Some(pass_us);
        }
        let open = self.drafts.iter().filter(|draft| draft.is_open);
        let gain = open
            .map(|draft| draft.reach * draft.want.acceptance.of_any() / ONE)
            .sum();
        weighing.pays(n_open, gain, pass_us).then_some(pass_us)
    }

    /// Runs one pass: a token for each sequence that is up to date, and a part of what the others lack.
    fn pass(&mut self, clock: &dyn Fn() -> u64, passes: &mut Passes) -> Result<(), StepError> {
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
        if !is_guessing(n_seqs, n_tokens) {
            passes.prompt_us += us;
        }
        Ok(())
    }

    /// Gives the batch the hidden states that its inputs are made of, and asks for those that the next pass needs.
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

    /// Keeps the layer's own states behind the rows of a pass that sampled.
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

    /// Appends what a pass guessed. Sequences that it brought no further rest until the next draft.
    fn extend(&mut self, mut weighing: Option<&mut Weighing>) {
        for draft in &mut self.drafts {
            let token = self.outcomes.iter().find_map(|outcome| match *outcome {
                Outcome::Token { seq, logit_row, id } if seq == draft.seq => Some((logit_row, id)),
                _ => None,
            });
            draft.is_open &= token.is_some();
            if let Some((logit_row, id)) = token {
                let sampled = self.output.sampled[logit_row as usize].and_then(Result::ok);
                let logprob = sampled.and_then(|sampled| sampled.logprob);
                let class = class_of(logprob.map_or(0.0, f32::exp));
                draft.guess.tokens.push(id);
                draft.guess.classes.push(class);
                draft.reach = draft.reach * draft.want.acceptance.of(class) / ONE;
                if let Some(weighing) = &mut weighing {
                    weighing.gain(draft.reach);
                } else {
                    draft.is_open &= draft.reach * ONE_IN >= ONE;
                }
                draft.is_open &= draft.guess.tokens.len() < draft.want.max_draft;
            }
            if !draft.is_open {
                self.scheduler.set_paused(draft.seq, true);
            }
        }
        self.refuse_ended();
    }

    /// Guesses no more for sequences whose rows failed. A model whose logits are never finite is of no use.
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

    /// Gives up: the first model continues alone.
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
    /// When one does not hold.
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

    /// Sequences that it knows or refuses, those of which it keeps hidden states, and pages that they hold.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let window = self.scheduler.window_pool();
        let n_window = window.map_or(0, crate::pool::PagePool::n_in_use);
        let n_given = self.hidden.as_ref().map_or(0, |hidden| hidden.in_use().0);
        (
            self.lanes.len() + self.refused.len() + n_given,
            self.scheduler.pool().n_in_use() + n_window,
        )
    }
}

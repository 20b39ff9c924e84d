//! [`Core`]: the engine without its thread: scheduler, executor, and the event streams to callers.
//!
//! Tests drive it step by step with their own clock; see [`Core::step`]. Invariants: results are committed in
//! the order in which steps were submitted; every sequence of the scheduler has a lane here and every lane a
//! sequence. Events are sent in `publish.rs`.

mod adapters;
mod cause;
mod drafts;
mod forced_output;
mod lane;
mod masks;
mod pipeline;
mod prefill_progress;
mod prefixes;
mod publish;
mod stopwatch;
mod store;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokenmill_backend::{Executor, ForwardBatch, PageCopy, PageGroup, StepError, StepOutput, Ticket};

use crate::{
    arena::SeqId,
    draft::drafter::Speculation,
    draft_model::{DraftModel, ledger::DraftLedger},
    engine::{
        board::{Board, Tally},
        core::{
            cause::Cause, forced_output::Following, lane::Lane, prefill_progress::PrefillWatch,
            stopwatch::Stopwatch, store::Outside,
        },
    },
    masks::{
        next_mask::{LaneMask, NextMask, Promises},
        workers::{MaskResult, MaskWorkers},
    },
    pages::events::PageEventSender,
    params::EngineConfig,
    plan::{
        batch::build_batch,
        outcome::{End, Outcome, RowResult},
        scheduler::{Scheduler, SchedulerConfig, StepBudget, drafts::Want},
        step_plan::{PlannedRow, StepPlan},
    },
    queue::{
        adapters::CoreAdapters,
        event::{Event, RequestId},
        gauge::{Place, QueueGauge},
        mailbox::{Command, Mailbox},
        prefix_command::Holds,
        submission::Submission,
    },
    sync,
    sync::channel::Sender,
};

/// How long a draining engine waits for idle readers and writers of prefixes, in microseconds.
const HOLD_PATIENCE_US: u64 = 5_000_000;

pub(crate) struct Core {
    pub(crate) executor: Box<dyn Executor>,
    config: EngineConfig,
    pub(crate) scheduler: Scheduler,
    pub(crate) board: sync::Arc<Board>,
    pub(crate) requests: HashMap<RequestId, Request>,
    /// Lanes, by the slot of the sequence.
    pub(crate) lanes: Vec<Option<Lane>>,
    pub(crate) in_flight: VecDeque<Step>,
    /// The time at which the newest completed step completed.
    last_done_us: u64,
    /// The duration of that step.
    pub(crate) last_step_us: u64,
    pub(crate) mask_workers: MaskWorkers,
    /// The failure after which the engine cannot continue.
    lost: Option<StepError>,
    pub(crate) tally: Tally,
    pub(crate) queue: QueueGauge,
    pub(crate) adapters: CoreAdapters,
    /// The stream for changes of the prefix cache, if it has a reader.
    page_events: Option<PageEventSender>,
    /// Prefixes being read or written.
    pub(crate) holds: Holds,
    /// Makes drafts, if present.
    pub(crate) draft_model: Option<DraftModel>,
    /// The gains and losses of the draft model.
    pub(crate) draft_ledger: DraftLedger,
    /// Sequences that order their masks only after the draft model was asked.
    pub(crate) unordered: Vec<SeqId>,
    /// Time to compute a mask after a draft token, in microseconds.
    pub(crate) mask_ahead_us: u64,
    /// Start of the period in which only held prefixes are left and no caller has used them.
    pub(crate) held_alone_since_us: Option<u64>,
    /// The page store, if there is one.
    pub(crate) outside: Option<Box<Outside>>,

    // Buffers that steps reuse.
    pub(crate) wants: Vec<Want>,
    batch: ForwardBatch,
    pub(crate) output: StepOutput,
    pub(crate) results: Vec<RowResult>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) mask_results: Vec<MaskResult>,
    spare_plans: Vec<StepPlan>,
}

/// A request: the receiver of its events, and its sequences.
pub(crate) struct Request {
    pub(crate) events: Sender<Event>,
    pub(crate) sequences: Vec<SeqId>,
    pub(crate) n_open: usize,
}

/// A step in flight.
pub(crate) struct Step {
    ticket: Ticket,
    pub(crate) plan: StepPlan,
    submitted_us: u64,
    /// How long the device was idle before the step although it could have worked, in microseconds.
    idle_us: u64,
}

impl Core {
    pub(crate) fn new(executor: Box<dyn Executor>, config: EngineConfig, board: sync::Arc<Board>) -> Self {
        let scheduler = Scheduler::new(SchedulerConfig {
            limits: executor.limits().clone(),
            max_running: config.max_running,
            max_step_tokens: config.max_step_tokens,
            model_salt: config.model_salt,
            speculation: config.speculation,
        });
        let queue = QueueGauge::new(config.max_queued);
        let core = Self {
            executor,
            config,
            scheduler,
            board,
            requests: HashMap::new(),
            lanes: Vec::new(),
            in_flight: VecDeque::new(),
            last_done_us: 0,
            last_step_us: 0,
            mask_workers: MaskWorkers::new(),
            lost: None,
            tally: Tally::default(),
            queue,
            adapters: CoreAdapters::default(),
            page_events: None,
            holds: Holds::default(),
            draft_model: None,
            draft_ledger: DraftLedger::default(),
            unordered: Vec::new(),
            mask_ahead_us: 0,
            wants: Vec::new(),
            held_alone_since_us: None,
            outside: None,
            batch: ForwardBatch::default(),
            output: StepOutput::default(),
            results: Vec::new(),
            outcomes: Vec::new(),
            mask_results: Vec::new(),
            spare_plans: Vec::new(),
        };
        core.board.publish(&core.scheduler, core.tally);
        core
    }

    /// Sends changes of the prefix cache to `to` from now on.
    pub(crate) fn send_page_events(&mut self, to: PageEventSender) {
        self.scheduler.tell_page_events();
        self.page_events = Some(to);
    }

    /// Returns whether there is nothing to do and nothing in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.scheduler.is_empty() && self.in_flight.is_empty() && self.holds.is_empty()
    }

    /// Releases prefixes that no caller has used for a while, if nothing else is left: they would keep a
    /// draining engine alive forever.
    pub(crate) fn end_forgotten_holds(&mut self, now_us: u64) {
        if !self.scheduler.is_empty() || !self.in_flight.is_empty() || self.holds.is_empty() {
            self.held_alone_since_us = None;
            return;
        }
        let since_us = *self.held_alone_since_us.get_or_insert(now_us);
        if now_us.saturating_sub(since_us) >= HOLD_PATIENCE_US {
            for hold in self.holds.open.drain(..) {
                self.scheduler.let_prefix_go(hold.prefix);
            }
        }
    }

    /// Returns the failure after which the engine cannot continue, if any.
    pub(crate) fn lost(&self) -> Option<&StepError> {
        self.lost.as_ref()
    }

    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        self.scheduler.next_deadline_us()
    }

    pub(crate) fn obey(&mut self, command: Command, now_us: u64) {
        match command {
            Command::Submit(submission) => self.look_outside(*submission, now_us),
            Command::Cancel(request) => {
                self.stop_waiting(request);
                self.end_samples(request, None, now_us);
            }
            Command::Stop { request, sample } => {
                self.stop_waiting(request);
                self.end_samples(request, Some(sample), now_us);
            }
            Command::Fetched(fetched) => self.take_fetched(fetched, now_us),
            Command::Resume(request) => self.set_paused(request, false),
            Command::ForgetCache => self.scheduler.forget_cache(),
            Command::Adapter(command) => self.obey_adapter(command),
            Command::Memory(command) => {
                self.held_alone_since_us = None;
                self.transfer(command);
            }
        }
    }

    /// Returns the maximum number of steps in flight.
    fn n_steps(&self) -> usize {
        let wanted = self.config.steps_in_flight;
        wanted
            .unwrap_or_else(|| self.executor.steps_in_flight())
            .clamp(1, 2)
    }

    /// Advances by one step: submits as many steps as may be in flight, then waits for the oldest. Returns
    /// whether there was a step, or anything else to do.
    pub(crate) fn step(&mut self, clock: &dyn Fn() -> u64) -> bool {
        self.expire(clock());
        self.end_late_fetches(clock());
        let has_brought = self.bring_adapters(clock);
        let n_steps = self.n_steps();
        while self.in_flight.len() < n_steps && !self.waits_for_newest() && self.launch(clock) {}
        let has_retired = self.retire(clock);
        self.keep_idle_pages() || has_retired || has_brought
    }

    pub(crate) fn has_step_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Publishes the state after a step.
    pub(crate) fn publish(&mut self, mailbox: &Mailbox) {
        let (returned, left) = self.queue.take_changes();
        if (returned, left) != ((0, 0), (0, 0)) {
            mailbox.change_queue(returned, left);
        }
        self.let_adapters_go();
        self.publish_adapters();
        self.publish_stats();
        if let Some(sender) = &mut self.page_events {
            let events = if sender.begins_again() {
                self.scheduler.restate_page_events()
            } else {
                self.scheduler.take_page_events()
            };
            sender.send(events);
        }
    }

    pub(crate) fn publish_stats(&mut self) {
        self.tally.n_parked = self.queue.n_parked();
        self.tally.n_fetching = (self.outside.as_ref()).map_or(0, |outside| outside.fetches.n_waiting());
        if let Some(model) = &self.draft_model {
            self.tally.failed_draft_rows = model.failed_rows();
            self.tally.has_draft_failed = !model.works();
        }
        self.board.publish(&self.scheduler, self.tally);
    }

    /// Ends everything as cancelled.
    pub(crate) fn cancel_all(&mut self, now_us: u64) {
        self.stop_all_waiting();
        let requests: Vec<RequestId> = self.requests.keys().copied().collect();
        for request in requests {
            self.end_samples(request, None, now_us);
        }
    }

    /// Creates the sequences of a request. All samples after the first are forks of it.
    pub(crate) fn accept(&mut self, submission: Submission) {
        let mut sequences = Vec::with_capacity(submission.job.n_samples() as usize);
        for sample in 0..submission.job.n_samples() {
            let mut spec = submission.spec(sequences.first().copied());
            spec.uses_prefix_cache &= self.uses_prefix_cache();
            let seq = self.scheduler.submit(spec);
            sequences.push(seq);
            let mut opening = submission.opening(sample);
            if let (Some(opening), Some(tokens)) = (&mut opening, self.scheduler.tokens_of(seq)) {
                // The prompt filled the context and was cut.
                opening.take_off(submission.tokens.len() - tokens.len());
            }
            let n_prompt = self.scheduler.tokens_of(seq).map_or(0, <[u32]>::len);
            let follows = submission.job.follows().cloned();
            let following = follows.map(|tokens| Following::new(tokens, n_prompt));
            self.open_lane(Lane {
                seq,
                request: submission.request,
                sample,
                sampling: submission.job.sampling(sample),
                opening,
                following,
                media: submission.job.media(),
                mask: submission.job.constraint().cloned().map(LaneMask::Waiting),
                promises: Promises::default(),
                expected: None,
                unordered: None,
                stopwatch: Stopwatch::new(submission.submitted_us, submission.job.traces_tokens()),
                prefill: (sample == 0 && submission.job.reports_prefill())
                    .then(|| PrefillWatch::new(n_prompt)),
                n_queued_tokens: if sample == 0 { submission.tokens.len() } else { 0 },
                place: Place::Queued,
            });
            self.begin_mask_early(seq);
        }
        self.expect_drafts(submission.tokens.len());
        let request = Request {
            events: submission.events,
            n_open: sequences.len(),
            sequences,
        };
        self.requests.insert(submission.request, request);
    }

    /// Returns whether sequences may use the prefix cache. An encoder's sequences leave nothing behind after
    /// their step.
    pub(crate) fn uses_prefix_cache(&self) -> bool {
        self.config.uses_prefix_cache && !self.scheduler.config().limits.is_encoder
    }

    fn open_lane(&mut self, lane: Lane) {
        let slot = lane.seq.slot();
        if self.lanes.len() <= slot {
            self.lanes.resize_with(slot + 1, || None);
        }
        self.lanes[slot] = Some(lane);
    }

    pub(crate) fn lane(&mut self, seq: SeqId) -> Option<&mut Lane> {
        self.lanes
            .get_mut(seq.slot())?
            .as_mut()
            .filter(|lane| lane.seq == seq)
    }

    fn end_samples(&mut self, request: RequestId, sample: Option<u32>, now_us: u64) {
        let sequences = self
            .requests
            .get(&request)
            .map(|request| request.sequences.clone());
        for seq in sequences.unwrap_or_default() {
            if self
                .lane(seq)
                .is_some_and(|lane| sample.is_none_or(|sample| sample == lane.sample))
            {
                self.scheduler.end(seq, End::Cancelled, &mut self.outcomes);
            }
        }
        self.publish_outcomes(Cause::Caller, now_us);
    }

    pub(crate) fn set_paused(&mut self, request: RequestId, is_paused: bool) {
        let Some(request) = self.requests.get(&request) else {
            return;
        };
        for &seq in &request.sequences {
            self.scheduler.set_paused(seq, is_paused);
            let lane = self.lanes.get_mut(seq.slot()).and_then(Option::as_mut);
            if let Some(lane) = lane.filter(|lane| lane.seq == seq) {
                self.queue
                    .set_parked(&mut lane.place, lane.n_queued_tokens, is_paused);
            }
        }
    }

    fn expire(&mut self, now_us: u64) {
        self.scheduler.expire(now_us, &mut self.outcomes);
        self.publish_outcomes(Cause::Caller, now_us);
    }

    /// Plans and submits a step. Returns whether there was anything to do.
    fn launch(&mut self, clock: &dyn Fn() -> u64) -> bool {
        if self.lost.is_some() {
            return false;
        }
        let mut now_us = clock();
        // An idle gap longer than a step was not caused by drafting.
        let idle_us = if self.n_steps() > 1 && self.in_flight.is_empty() {
            Some(now_us.saturating_sub(self.last_done_us)).filter(|&idle_us| idle_us <= self.last_step_us)
        } else {
            None
        };
        let idle_us = idle_us.unwrap_or(0);
        if self.n_unordered() == 0 {
            self.gather_masks(now_us);
        } else {
            // Masks that wait for the draft model are not even ordered yet.
            self.take_finished_masks(now_us);
        }
        if self.draft_model.is_some() && self.in_flight.is_empty() && self.draft_ahead(clock) {
            now_us = clock();
        }
        if self.order_waiting_masks() {
            self.gather_masks(now_us);
        }
        let mut plan = self.spare_plans.pop().unwrap_or_default();
        let n_decode = self.scheduler.n_decoding();
        let n_sequences = n_decode + self.scheduler.n_prompts() + self.scheduler.n_streams_without_mask();
        let max_stall_percent = self.config.max_stall_percent;
        let is_weighed = matches!(self.scheduler.config().speculation, Speculation::Auto { .. });
        let may_draft = self.in_flight.is_empty();
        let budget = self.board.with_step_times(|times| StepBudget {
            prefill_beside_decode: times.grant_prefill(n_decode, n_sequences, max_stall_percent),
            draft_times: is_weighed.then(|| times.draft_times(n_decode)).flatten(),
            may_draft,
        });
        self.scheduler.plan(budget, &mut plan);
        self.keep_evicted_pages();
        for &seq in &plan.admitted {
            self.note_beginning(seq, now_us);
            self.begin_mask(seq);
        }
        if plan.is_empty() && !plan.has_copies() {
            let did_something = !plan.preempted.is_empty();
            self.spare_plans.push(plan);
            return did_something || self.wait_for_mask(now_us);
        }
        let copied = (PageGroup::ALL.into_iter().zip(&plan.copies))
            .try_for_each(|(group, copies)| self.copy_pages(group, copies));
        if let Err(error) = copied {
            self.scheduler.fail_copies(&plan, &mut self.outcomes);
            self.fail_step(plan, &error, now_us);
            return true;
        }
        if plan.is_empty() {
            self.spare_plans.push(plan);
            return true;
        }
        debug_assert!(
            may_draft || plan.drafts.is_empty(),
            "next to a step with drafts there is no other"
        );
        self.note_missed_masks();
        let lanes = &self.lanes;
        let params_of = |row: &PlannedRow, n_inputs: u32| {
            let lane = lanes[row.seq.slot()]
                .as_ref()
                .expect("a planned sequence has a lane");
            let opening = lane.opening.as_ref().filter(|opening| n_inputs < opening.end);
            let params = opening
                .map(|opening| &opening.sampling)
                .or(lane.sampling.as_ref());
            Arc::clone(params.expect("a sequence that samples has parameters"))
        };
        let n_words = self.scheduler.config().limits.n_vocab.div_ceil(32);
        let mask_of = |row: &PlannedRow, n_guessed: usize| {
            let lane = lanes[row.seq.slot()].as_ref()?;
            let arrival = lane.promises.arrival();
            match (lane.mask.as_ref()?, arrival) {
                (LaneMask::Ready(_, words), _) => {
                    let start = n_guessed * n_words;
                    Some(NextMask::Words(&words[start..start + n_words]))
                }
                (LaneMask::Promised, Some(arrival)) => Some(NextMask::Late(arrival, n_guessed)),
                _ => panic!("a constrained sequence samples with its mask"),
            }
        };
        let media_of = |row: &PlannedRow| {
            let lane = lanes[row.seq.slot()].as_ref();
            lane.map_or(&[][..], |lane| &lane.media[..])
        };
        build_batch(
            &self.scheduler,
            &plan,
            params_of,
            mask_of,
            media_of,
            &mut self.batch,
        );
        match self.executor.submit(&self.batch) {
            Ok(ticket) => self.in_flight.push_back(Step {
                ticket,
                plan,
                submitted_us: now_us,
                idle_us,
            }),
            Err(error) => self.fail_step(plan, &error, now_us),
        }
        true
    }

    /// Executes a plan's copies for a group. A failed copy to the host tier costs only the cached page: no
    /// sequence uses it yet, unless a later copy of the plan brings it back.
    pub(crate) fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        let is_download = |copy: &PageCopy| matches!(copy, PageCopy::Download { .. });
        let mut n_done = 0;
        for run in copies.chunk_by(|a, b| is_download(a) == is_download(b)) {
            n_done += run.len();
            let Err(error) = self.executor.copy_pages(group, run) else {
                continue;
            };
            let is_lost = error.is_final();
            let is_used = |host_page| {
                (copies[n_done..].iter()).any(
                    |copy| matches!(*copy, PageCopy::Upload { host_page: from, .. } if from == host_page),
                )
            };
            for copy in run {
                match *copy {
                    PageCopy::Download { host_page, .. } if !is_lost && !is_used(host_page) => {
                        self.scheduler.forget_host_page(group, host_page);
                    }
                    _ => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Waits for the oldest step and commits its results.
    fn retire(&mut self, clock: &dyn Fn() -> u64) -> bool {
        let Some(Step {
            ticket,
            plan,
            submitted_us,
            idle_us,
        }) = self.in_flight.pop_front()
        else {
            return false;
        };
        self.output.clear();
        let done = self.executor.wait(ticket, &mut self.output);
        let now_us = clock();
        // Time spent waiting for masks says nothing about other steps.
        let mask_wait_us = self.longest_mask_wait(&plan).as_micros() as u64;
        let took_us =
            (now_us.saturating_sub(submitted_us.max(self.last_done_us))).saturating_sub(mask_wait_us);
        self.last_done_us = now_us;
        self.last_step_us = took_us;
        if let Err(error) = done {
            self.fail_step(plan, &error, now_us);
            return true;
        }
        let n_decode = plan.n_decode_rows();
        let n_drafted = plan.drafts.len();
        // A step with drafts waited for the tokens of the previous step.
        let took_us = if n_drafted == 0 {
            took_us
        } else {
            took_us + idle_us
        };
        let n_prefill_tokens = plan.n_tokens() - n_decode - n_drafted;
        self.board.with_step_times(|times| {
            if n_drafted == 0 {
                times.observe(n_decode, n_prefill_tokens, took_us);
            } else if n_prefill_tokens == 0 {
                times.observe_drafts(n_decode + n_drafted, took_us);
            }
        });
        self.send_rows(&plan);
        self.take_late_masks(&plan, now_us);
        self.read_results(&plan);
        let drafts_before = self.scheduler.counters().model_drafts;
        self.scheduler.commit(&plan, &self.results, &mut self.outcomes);
        if self.draft_model.is_some() {
            self.note_drafting(&plan, took_us, &drafts_before);
        }
        self.order_masks();
        self.send_prefills(&plan, now_us);
        self.publish_outcomes(Cause::Step(&plan), now_us);
        self.spare_plans.push(plan);
        true
    }

    fn fail_step(&mut self, plan: StepPlan, error: &StepError, now_us: u64) {
        self.tally.failed_steps += 1;
        if error.is_final() {
            self.lost = Some(error.clone());
            self.in_flight.clear();
            let alive: Vec<SeqId> = self.lanes.iter().flatten().map(|lane| lane.seq).collect();
            for seq in alive {
                self.scheduler.end(seq, End::StepFailed, &mut self.outcomes);
            }
            self.scheduler.forget_cache();
        } else {
            self.scheduler.fail_step(&plan, &mut self.outcomes);
        }
        self.publish_outcomes(Cause::Failure(error), now_us);
        self.spare_plans.push(plan);
    }
}

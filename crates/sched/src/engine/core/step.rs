//! The way of one step: planned, copied, submitted, and committed when it is done.
//!
//! Part of [`Core`]. Invariants: a step with drafts is alone in flight; a step that fails ends its sequences,
//! and the loss of the device ends all.

use std::sync::Arc;

use tokenmill_backend::{PageCopy, PageGroup, StepError};

use crate::{
    arena::SeqId,
    draft::drafter::Speculation,
    engine::core::{Core, cause::Cause, flight::Step},
    masks::next_mask::{LaneMask, NextMask},
    plan::{
        batch::build_batch,
        outcome::End,
        scheduler::StepBudget,
        step_plan::{PlannedRow, StepPlan},
    },
};

impl Core {
    /// Plans and submits a step. Returns whether there was anything to do.
    pub(super) fn launch(&mut self, clock: &dyn Fn() -> u64) -> bool {
        if self.lost.is_some() {
            return false;
        }
        let begun_us = clock();
        let idle_us = if self.n_steps() > 1 {
            self.flight.idle_us(begun_us)
        } else {
            0
        };
        let now_us = self.gather_masks_and_drafts(begun_us, clock);
        let plan = self.plan(now_us);
        if plan.is_empty() && !plan.has_copies() {
            let did_something = !plan.preempted.is_empty();
            self.flight.recycle(plan);
            return did_something || self.wait_for_mask(now_us);
        }
        if let Err(error) = self.copy_planned(&plan) {
            self.fail_step(plan, &error, now_us);
        } else if plan.is_empty() {
            self.flight.recycle(plan);
        } else {
            self.note_missed_masks();
            self.submit(plan, idle_us, now_us);
        }
        true
    }

    /// Collects masks, asks the draft model, and orders the masks that waited for it. Returns the time.
    fn gather_masks_and_drafts(&mut self, mut now_us: u64, clock: &dyn Fn() -> u64) -> u64 {
        if self.n_unordered() == 0 {
            self.gather_masks(now_us);
        } else {
            // Masks that wait for the draft model are not even ordered yet.
            self.take_finished_masks(now_us);
        }
        if self.drafts.has_model() && self.flight.is_empty() && self.draft_ahead(clock) {
            now_us = clock();
        }
        if self.order_waiting_masks() {
            self.gather_masks(now_us);
        }
        now_us
    }

    /// Plans a step within the limits of the measured times. Sequences that begin with it are announced, and pages
    /// evicted for it are given to the store.
    fn plan(&mut self, now_us: u64) -> StepPlan {
        let mut plan = self.flight.take_plan();
        self.scheduler.plan(self.budget(), &mut plan);
        debug_assert!(
            self.flight.is_empty() || plan.drafts.is_empty(),
            "next to a step with drafts there is no other"
        );
        self.keep_evicted_pages();
        for &seq in &plan.admitted {
            self.note_beginning(seq, now_us);
            self.begin_mask(seq);
        }
        plan
    }

    /// Returns the limits of the next step.
    fn budget(&self) -> StepBudget {
        let n_decode = self.scheduler.n_decoding();
        let n_sequences = n_decode + self.scheduler.n_prompts() + self.scheduler.n_streams_without_mask();
        let max_stall_percent = self.config.max_stall_percent;
        let is_weighed = matches!(self.scheduler.config().speculation, Speculation::Auto { .. });
        self.board.with_step_times(|times| StepBudget {
            prefill_beside_decode: times.grant_prefill(n_decode, n_sequences, max_stall_percent),
            draft_times: is_weighed.then(|| times.draft_times(n_decode)).flatten(),
            may_draft: self.flight.is_empty(),
        })
    }

    /// Executes the copies of a plan. If they fail, the sequences that need them have failed.
    pub(super) fn copy_planned(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        let mut of_groups = PageGroup::ALL.into_iter().zip(&plan.copies);
        let copied = of_groups.try_for_each(|(group, copies)| self.copy_pages(group, copies));
        if copied.is_err() {
            self.scheduler.fail_copies(plan, &mut self.outcomes);
        }
        copied
    }

    /// Executes a plan's copies for a group. A failed copy to the host tier costs only the cached page: no
    /// sequence uses it yet, unless a later copy of the plan brings it back.
    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
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

    /// Submits a step to the executor.
    fn submit(&mut self, plan: StepPlan, idle_us: u64, now_us: u64) {
        self.fill_batch(&plan);
        match self.executor.submit(&self.batch) {
            Ok(ticket) => self.flight.push(Step {
                ticket,
                plan,
                submitted_us: now_us,
                idle_us,
            }),
            Err(error) => self.fail_step(plan, &error, now_us),
        }
    }

    /// Turns a plan into the batch that the executor runs.
    fn fill_batch(&mut self, plan: &StepPlan) {
        let lanes = &self.lanes;
        let params_of = |row: &PlannedRow, n_inputs: u32| {
            let lane = lanes.get(row.seq).expect("a planned sequence has a lane");
            let opening = lane.opening.as_ref().filter(|opening| n_inputs < opening.end);
            let params = opening
                .map(|opening| &opening.sampling)
                .or(lane.sampling.as_ref());
            Arc::clone(params.expect("a sequence that samples has parameters"))
        };
        let n_words = self.scheduler.config().limits.n_vocab.div_ceil(32);
        let mask_of = |row: &PlannedRow, n_drafted: usize| {
            let lane = lanes.get(row.seq)?;
            let arrival = lane.promises.arrival();
            match (lane.mask.as_ref()?, arrival) {
                (LaneMask::Ready(_, words), _) => {
                    let start = n_drafted * n_words;
                    Some(NextMask::Words(&words[start..start + n_words]))
                }
                (LaneMask::Promised, Some(arrival)) => Some(NextMask::Late(arrival, n_drafted)),
                _ => panic!("a constrained sequence samples with its mask"),
            }
        };
        let media_of = |row: &PlannedRow| lanes.get(row.seq).map_or(&[][..], |lane| &lane.media[..]);
        build_batch(
            &self.scheduler,
            plan,
            params_of,
            mask_of,
            media_of,
            &mut self.batch,
        );
    }

    /// Waits for the oldest step and commits its results. Returns whether there was one.
    pub(super) fn retire(&mut self, clock: &dyn Fn() -> u64) -> bool {
        let Some(Step {
            ticket,
            plan,
            submitted_us,
            idle_us,
        }) = self.flight.pop()
        else {
            return false;
        };
        self.output.clear();
        let done = self.executor.wait(ticket, &mut self.output);
        let now_us = clock();
        let mask_wait_us = self.longest_mask_wait(&plan).as_micros() as u64;
        let took_us = self.flight.note_done(submitted_us, now_us, mask_wait_us);
        match done {
            Ok(()) => {
                // A step with drafts waited for the tokens of the previous step.
                let waited_us = if plan.drafts.is_empty() { 0 } else { idle_us };
                self.commit(plan, took_us + waited_us, now_us);
            }
            Err(error) => self.fail_step(plan, &error, now_us),
        }
        true
    }

    /// Commits the results of a step that took `took_us`, and sends them to the callers.
    fn commit(&mut self, plan: StepPlan, took_us: u64, now_us: u64) {
        self.note_times(&plan, took_us);
        self.send_rows(&plan);
        self.take_late_masks(&plan, now_us);
        self.read_results(&plan);
        let drafts_before = self.scheduler.counters().model_drafts;
        self.scheduler.commit(&plan, &self.results, &mut self.outcomes);
        self.note_drafting(&plan, took_us, &drafts_before);
        self.order_masks();
        self.send_prefills(&plan, now_us);
        self.publish_outcomes(Cause::Step(&plan), now_us);
        self.flight.recycle(plan);
    }

    /// Records how long a step took.
    fn note_times(&mut self, plan: &StepPlan, took_us: u64) {
        let n_decode = plan.n_decode_rows();
        let n_drafted = plan.drafts.len();
        let n_prefill_tokens = plan.n_tokens() - n_decode - n_drafted;
        self.board.with_step_times(|times| {
            if n_drafted == 0 {
                times.observe(n_decode, n_prefill_tokens, took_us);
            } else if n_prefill_tokens == 0 {
                times.observe_drafts(n_decode + n_drafted, took_us);
            }
        });
    }

    /// Ends the sequences of a failed step, or all if the device is lost.
    fn fail_step(&mut self, plan: StepPlan, error: &StepError, now_us: u64) {
        self.tally.failed_steps += 1;
        if error.is_final() {
            self.lost = Some(error.clone());
            self.flight.clear();
            let alive: Vec<SeqId> = self.lanes.iter().map(|lane| lane.seq).collect();
            for seq in alive {
                self.scheduler.end(seq, End::StepFailed, &mut self.outcomes);
            }
            self.scheduler.forget_cache();
        } else {
            self.scheduler.fail_step(&plan, &mut self.outcomes);
        }
        self.publish_outcomes(Cause::Failure(error), now_us);
        self.flight.recycle(plan);
    }

    /// Returns whether a step is in flight.
    pub(super) fn has_step_in_flight(&self) -> bool {
        !self.flight.is_empty()
    }
}

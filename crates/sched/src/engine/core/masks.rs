//! Masks: how constrained sequences get the mask of their next token.
//!
//! Part of [`Core`]. A sampled token goes to the workers at once. If the executor accepts late masks, the
//! sequence joins the next step, and its mask arrives while the step runs; it costs nothing unless it takes
//! longer than the step. A sequence with slower masks joins a step again only when its mask is ready, as with
//! executors that do not accept late masks. Invariants: a sampling row of a constrained sequence always has
//! its mask, or one that a worker is computing; the engine waits for masks when it has nothing else to do,
//! and otherwise for at most a small part of a step.

use std::time::Duration;

use crate::{
    arena::SeqId,
    draft::{budget::DraftBudget, drafter::Speculation},
    engine::core::{Core, cause::Cause},
    masks::{
        next_mask::LaneMask,
        text::LookAhead,
        workers::{Foreseen, MaskOrder, MaskResult, MaskStage, MaskWorkers},
    },
    plan::{
        outcome::{End, Outcome, RowResult},
        step_plan::{PlannedOutput, StepPlan},
    },
};

/// Maximum number of constraints that are begun before their sequences are admitted, so that first masks are
/// ready in time. Constraints of a longer queue take no memory yet.
const MAX_BEGUN_EARLY: usize = 16;

/// How long a step that would leave out constrained sequences waits for their masks if no other sequence
/// decodes.
const PATIENCE_ALONE: Duration = Duration::from_millis(20);

/// A time too short to notice: masks that take less are always worth a promise.
const SHORT: Duration = Duration::from_millis(1);

/// The masks that workers compute for the engine's sequences.
pub(super) struct Masks {
    workers: MaskWorkers,
    /// Sequences that order their masks only after the draft model was asked.
    unordered: Vec<SeqId>,
    /// Time to compute a mask after a draft token, in microseconds.
    ahead_us: u64,
    /// A buffer that steps reuse.
    results: Vec<MaskResult>,
}

impl Masks {
    pub(super) fn new() -> Self {
        Self {
            workers: MaskWorkers::new(),
            unordered: Vec::new(),
            ahead_us: 0,
            results: Vec::new(),
        }
    }

    /// Returns the threads that compute masks.
    #[cfg(test)]
    pub(super) fn workers(&self) -> &MaskWorkers {
        &self.workers
    }
}

impl Core {
    /// Returns the predetermined token of a sequence after a number of inputs, if there is one.
    pub(super) fn given_after(&self, seq: SeqId, n_inputs: usize) -> Option<u32> {
        let forced = self.lanes.get(seq)?.forced.as_ref()?;
        forced.token_after(n_inputs)
    }

    /// Begins the constraint of a new sequence, unless enough have begun that it can wait for admission.
    pub(super) fn begin_mask_early(&mut self, seq: SeqId) {
        let n_begun = (self.lanes.iter())
            .filter(|lane| !matches!(lane.mask, None | Some(LaneMask::Waiting(_))))
            .count();
        if n_begun < MAX_BEGUN_EARLY {
            self.begin_mask(seq);
        }
    }

    /// Begins the constraint of a sequence, if it has one that has not begun.
    pub(super) fn begin_mask(&mut self, seq: SeqId) {
        let n_words = self.n_mask_words();
        let n_forced = self.scheduler.config().speculation.max_draft();
        let patience = self.ahead_patience();
        let at = self.scheduler.tokens_of(seq).map_or(0, <[u32]>::len);
        let Some(lane) = self.lanes.get_mut(seq) else {
            return;
        };
        let Some(LaneMask::Waiting(source)) = &lane.mask else {
            return;
        };
        let order = MaskOrder {
            seq,
            stage: MaskStage::First(source.clone()),
            n_words,
            ahead: LookAhead {
                at,
                n_forced,
                patience,
                ..LookAhead::default()
            },
            words: Vec::new(),
            arrival: None,
        };
        lane.mask = Some(LaneMask::Ordered);
        self.masks.workers.order(order);
    }

    /// Orders the masks after the tokens of a step, and those after the likely next tokens. If the draft
    /// model may predict these before the next step, the order waits until it was asked.
    pub(super) fn order_masks(&mut self) {
        if !self.outcomes.iter().any(|outcome| self.is_masked_token(outcome)) {
            return;
        }
        self.take_foreseen();
        let mut budget = self.budget_ahead();
        let waits = self.may_draft_ahead() && self.max_ahead() > 0;
        let outcomes = std::mem::take(&mut self.outcomes);
        let seq_of = |outcome: &Outcome| match *outcome {
            Outcome::Token { seq, .. } => Some(seq),
            _ => None,
        };
        for of_row in outcomes.chunk_by(|a, b| seq_of(a).is_some() && seq_of(a) == seq_of(b)) {
            let Some(seq) = of_row.first().and_then(seq_of) else {
                continue;
            };
            let tokens = of_row.iter().filter_map(|outcome| match *outcome {
                Outcome::Token { id, .. } => Some(id),
                _ => None,
            });
            let tokens = tokens.collect();
            match self.lanes.get_mut(seq) {
                Some(lane) if waits && lane.mask.is_some() => {
                    lane.unordered = Some(tokens);
                    self.masks.unordered.push(seq);
                }
                _ => self.order_mask(seq, tokens, &mut budget),
            }
        }
        self.outcomes = outcomes;
    }

    /// Returns the number of sequences whose masks wait for the draft model.
    pub(super) fn n_unordered(&self) -> usize {
        let is_alive = |seq: &&SeqId| self.scheduler.tokens_of(**seq).is_some();
        self.masks.unordered.iter().filter(is_alive).count()
    }

    /// Orders the masks that waited for the draft model. Returns whether there were any.
    pub(super) fn order_waiting_masks(&mut self) -> bool {
        if self.masks.unordered.is_empty() {
            return false;
        }
        let mut budget = self.budget_ahead();
        for seq in std::mem::take(&mut self.masks.unordered) {
            if let Some(tokens) = self.lanes.get_mut(seq).and_then(|lane| lane.unordered.take()) {
                self.order_mask(seq, tokens, &mut budget);
            }
        }
        true
    }

    /// Returns the budget for drafts in the next step.
    fn budget_ahead(&self) -> DraftBudget {
        let n_running = self.scheduler.n_running();
        let is_weighed = matches!(self.scheduler.config().speculation, Speculation::Auto { .. });
        let times = (self.board).with_step_times(|times| times.draft_times(n_running));
        self.scheduler.likely_budget(times.filter(|_| is_weighed))
    }

    fn is_masked_token(&self, outcome: &Outcome) -> bool {
        let Outcome::Token { seq, .. } = *outcome else {
            return false;
        };
        self.lanes.get(seq).is_some_and(|lane| lane.mask.is_some())
    }

    /// Orders the mask after `tokens`, the newest of a sequence, if it is constrained and continues.
    fn order_mask(&mut self, seq: SeqId, tokens: Vec<u32>, budget: &mut DraftBudget) {
        let Some(known) = self.scheduler.tokens_of(seq) else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(seq).filter(|lane| lane.mask.is_some()) else {
            return;
        };
        let at = known.len();
        let expected = (lane.expected.take()).and_then(|seen| seen.behind(known).map(<[u32]>::to_vec));
        let max = self.max_ahead();
        let (draft, n_forced) = self
            .scheduler
            .draft_to_mask(seq, expected.as_deref(), max, budget);
        let patience = self.ahead_patience();
        let is_late = self.executor.takes_late_masks();
        let n_words = self.n_mask_words();
        let Some(lane) = self.lanes.get_mut(seq) else {
            return;
        };
        let Some(LaneMask::Ready(text, words)) = lane.mask.replace(LaneMask::Ordered) else {
            unreachable!("a constrained sequence samples with its mask");
        };
        text.want();
        let arrival = is_late.then(|| lane.promises.next()).flatten();
        let ahead = LookAhead {
            at,
            draft: draft.tokens.clone(),
            n_forced,
            patience,
            is_for_this_step: arrival.is_none(),
        };
        if arrival.is_some() {
            lane.mask = Some(LaneMask::Promised);
            self.scheduler.let_sample(seq);
        }
        self.scheduler.offer(seq, draft);
        self.masks.workers.order(MaskOrder {
            seq,
            stage: MaskStage::Next(text, tokens),
            n_words,
            ahead,
            words,
            arrival,
        });
    }

    /// Returns the maximum number of draft tokens with masks. A step that has begun waits for their masks, so
    /// if times are weighed, they may take only a part of a step.
    pub(super) fn max_ahead(&self) -> usize {
        match self.scheduler.config().speculation {
            Speculation::Auto { .. } => {
                (self.flight.last_step_us() / 4 / self.masks.ahead_us.max(1)) as usize
            }
            _ => usize::MAX,
        }
    }

    /// Returns the time limit for masks after forced tokens.
    fn ahead_patience(&self) -> Duration {
        match self.scheduler.config().speculation {
            Speculation::Auto { .. } => Duration::from_micros(self.flight.last_step_us() / 4),
            _ => Duration::MAX,
        }
    }

    fn n_mask_words(&self) -> usize {
        self.scheduler.config().limits.n_vocab.div_ceil(32)
    }

    /// Returns the number of masks of a constrained sequence, for its next token and after draft tokens;
    /// `None` for other sequences.
    pub(super) fn n_masks(&self, seq: SeqId) -> Option<usize> {
        match self.lanes.get(seq)?.mask.as_ref()? {
            LaneMask::Ready(_, words) => Some(words.len() / self.n_mask_words()),
            _ => Some(1),
        }
    }

    /// Returns the longest time that a completed step waited for a mask.
    pub(super) fn longest_mask_wait(&self, plan: &StepPlan) -> Duration {
        let sampling = (plan.rows.iter()).filter(|row| row.output == PlannedOutput::Sample);
        let waits = sampling.filter_map(|row| {
            let lane = self.lanes.get(row.seq)?;
            let is_promised = matches!(lane.mask, Some(LaneMask::Promised));
            is_promised.then(|| lane.promises.arrival()).flatten()
        });
        waits
            .map(|arrival| arrival.waited())
            .max()
            .unwrap_or(Duration::ZERO)
    }

    /// Collects the masks that a step waited for, before its tokens are committed.
    pub(super) fn take_late_masks(&mut self, plan: &StepPlan, now_us: u64) {
        let tolerated = Duration::from_micros(self.flight.last_step_us() / 8).max(SHORT);
        let mut longest = Duration::ZERO;
        for row in &plan.rows {
            if row.output == PlannedOutput::Sample
                && let Some(lane) = self.lanes.get_mut(row.seq)
                && matches!(lane.mask, Some(LaneMask::Promised))
            {
                longest = longest.max(lane.promises.note_wait(tolerated));
            }
        }
        self.tally.masks.note_wait(longest);
        self.wait_for_masks(Duration::ZERO, now_us);
    }

    /// Reads the sampled tokens of a step. After draft tokens without a mask nothing was sampled.
    pub(super) fn read_results(&mut self, plan: &StepPlan) {
        self.results.clear();
        for row in &plan.rows {
            if row.output != PlannedOutput::Sample {
                self.results.push(RowResult::Advanced);
                continue;
            }
            let n_masks = self.n_masks(row.seq);
            for (n_drafted, logit_row) in
                (row.first_logit_row..row.first_logit_row + row.n_logit_rows()).enumerate()
            {
                if n_drafted > 0 && n_masks.is_some_and(|n_masks| n_drafted >= n_masks) {
                    self.results.push(RowResult::Advanced);
                    continue;
                }
                self.results.push(match self.output.sampled[logit_row as usize] {
                    Some(Ok(token)) => {
                        let n_inputs = row.sure_end() as usize + n_drafted;
                        RowResult::Token(self.given_after(row.seq, n_inputs).unwrap_or(token.id))
                    }
                    Some(Err(_)) => RowResult::Failed,
                    None => panic!("the executor has no result for logit row {logit_row}"),
                });
            }
        }
    }

    /// Collects the masks that are ready, and waits a little for the others.
    pub(super) fn gather_masks(&mut self, now_us: u64) {
        if self.masks.workers.n_open() == 0 {
            return;
        }
        let step = Duration::from_micros(self.flight.last_step_us());
        let patience = if !self.misses_masks() {
            Duration::ZERO
        } else if self.has_step_in_flight() {
            // The device works meanwhile.
            step / 2
        } else if self.scheduler.n_decoding() == 0 {
            PATIENCE_ALONE
        } else {
            (step / 32).clamp(Duration::from_micros(50), Duration::from_millis(5))
        };
        self.wait_for_masks(patience, now_us);
    }

    /// Collects the masks that are ready.
    pub(super) fn take_finished_masks(&mut self, now_us: u64) {
        self.wait_for_masks(Duration::ZERO, now_us);
    }

    fn wait_for_masks(&mut self, patience: Duration, now_us: u64) {
        if self.masks.workers.n_open() == 0 {
            return;
        }
        let mut results = std::mem::take(&mut self.masks.results);
        self.masks.workers.wait_for_all(patience, &mut results);
        self.take_masks(&mut results, now_us);
        self.masks.results = results;
    }

    /// Counts the rows that a step leaves out because their masks are not ready.
    pub(super) fn note_missed_masks(&mut self) {
        let n_missed = self.scheduler.n_without_mask();
        if n_missed == 0 {
            return;
        }
        self.tally.masks.n_missed += n_missed as u64;
        for lane in self.lanes.iter_mut() {
            if matches!(lane.mask, Some(LaneMask::Ordered)) && self.scheduler.is_without_mask(lane.seq) {
                let n_missed = lane.promises.miss_step();
                self.tally.masks.longest_missed = self.tally.masks.longest_missed.max(n_missed);
            }
        }
    }

    /// Returns whether some sequence cannot join a step before its mask is ready.
    fn misses_masks(&self) -> bool {
        self.lanes
            .iter()
            .any(|lane| matches!(lane.mask, Some(LaneMask::Ordered)))
    }

    /// Waits for a mask if there is nothing else to do. Returns whether there was one to wait for.
    pub(super) fn wait_for_mask(&mut self, now_us: u64) -> bool {
        if self.masks.workers.n_open() == 0 || self.has_step_in_flight() {
            return false;
        }
        let mut results = std::mem::take(&mut self.masks.results);
        self.masks.workers.wait_for_one(&mut results);
        self.take_masks(&mut results, now_us);
        self.masks.results = results;
        true
    }

    fn take_masks(&mut self, results: &mut Vec<MaskResult>, now_us: u64) {
        for MaskResult {
            seq,
            words,
            text,
            seen,
            took,
            took_ahead,
        } in results.drain(..)
        {
            self.tally.masks.add(took);
            self.note_ahead(seen.tokens.len(), took_ahead);
            let step = Duration::from_micros(self.flight.last_step_us()).max(SHORT);
            let n_masks = words.len() / self.n_mask_words();
            let Some(lane) = self.lanes.get_mut(seq) else {
                continue;
            };
            match text {
                Ok((text, is_done)) => {
                    lane.promises.note_time(took, step);
                    lane.promises.take_part();
                    // A sequence with a promised mask may already have sampled, or has a row in a step.
                    let was_promised = matches!(lane.mask, Some(LaneMask::Promised));
                    lane.mask = Some(LaneMask::Ready(text, words));
                    if seen.tokens.len() > seen.n_drafted {
                        lane.expected = Some(seen.clone());
                    }
                    if seen.is_refused {
                        self.scheduler.note_refused(seq, &seen);
                    }
                    if is_done {
                        self.scheduler.end(seq, End::Stop, &mut self.outcomes);
                    } else if was_promised {
                        // It arrived before the step was planned, or the step is done.
                        self.scheduler.cut_masked(seq, n_masks - 1);
                    } else {
                        self.scheduler.limit_masked(seq, &seen, n_masks - 1);
                        self.scheduler.let_sample(seq);
                    }
                }
                Err(failure) => {
                    lane.mask = Some(LaneMask::Failed(failure));
                    self.scheduler.end(seq, End::ConstraintFailed, &mut self.outcomes);
                }
            }
        }
        self.take_foreseen();
        self.publish_outcomes(Cause::Caller, now_us);
    }

    fn take_foreseen(&mut self) {
        for Foreseen { seq, seen, took } in self.masks.workers.take_foreseen() {
            self.note_ahead(seen.tokens.len() - seen.n_drafted, took);
            if let Some(lane) = self.lanes.get_mut(seq) {
                lane.expected = Some(seen);
            }
        }
    }

    /// Updates the time of masks after draft tokens.
    fn note_ahead(&mut self, n_drafted: usize, took: Duration) {
        if let n_drafted @ 1.. = n_drafted as u64 {
            let us = took.as_micros() as u64 / n_drafted;
            self.masks.ahead_us = (self.masks.ahead_us * 7 + us).div_ceil(8);
        } else {
            // Decay slowly, so that one slow look-ahead does not prevent all later ones.
            self.masks.ahead_us -= self.masks.ahead_us.div_ceil(64);
        }
    }
}

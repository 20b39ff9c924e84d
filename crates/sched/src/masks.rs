//! Masks: how constrained sequences get the mask of their next token.
//!
//! A part of [`Core`] that stands apart because plain sequences know none of it. A token that was sampled goes to the
//! workers at once. Where the executor takes masks that are late, the sequence takes part in the next step, and the mask comes while
//! that runs: it costs nothing, unless it takes longer than the step. A sequence whose masks do takes part in a step again once
//! the mask is back, as where masks cannot be late. Invariants: a row of a constrained sequence that samples always has its mask,
//! or one that a worker is at; the engine waits for masks while it has nothing else to do, and else for a small part of a step at
//! most.

use std::time::Duration;

use crate::{
    arena::SeqId,
    cause::Cause,
    core::Core,
    lane_mask::LaneMask,
    mask_workers::{MaskOrder, MaskResult, MaskStage},
    outcome::{End, Outcome},
    plan::{PlannedOutput, StepPlan},
};

/// Constraints that are begun before their sequences are admitted, so that first masks are ready in time. Those of a longer
/// queue take no memory yet.
const MAX_BEGUN_EARLY: usize = 16;

/// How long a step that would leave out constrained sequences waits for their masks where no other sequence decodes.
const PATIENCE_ALONE: Duration = Duration::from_millis(20);

/// A time that no stream notices: masks of less are always worth a promise.
const SHORT: Duration = Duration::from_millis(1);

impl Core {
    /// Begins the constraint of a new sequence, unless so many are begun that it can wait until it is admitted.
    pub(crate) fn begin_mask_early(&mut self, seq: SeqId) {
        let n_begun = (self.lanes.iter().flatten())
            .filter(|lane| !matches!(lane.mask, None | Some(LaneMask::Waiting(_))))
            .count();
        if n_begun < MAX_BEGUN_EARLY {
            self.begin_mask(seq);
        }
    }

    /// Begins the constraint of a sequence, where it has one that is not begun.
    pub(crate) fn begin_mask(&mut self, seq: SeqId) {
        let n_words = self.scheduler.config().limits.n_vocab.div_ceil(32);
        let Some(lane) = self.lane(seq) else {
            return;
        };
        let Some(LaneMask::Waiting(source)) = &lane.mask else {
            return;
        };
        let order = MaskOrder {
            seq,
            stage: MaskStage::First(source.clone()),
            words: vec![0; n_words],
            arrival: None,
        };
        lane.mask = Some(LaneMask::Ordered);
        self.mask_workers.order(order);
    }

    /// Orders the masks that follow the tokens of a step.
    pub(crate) fn order_masks(&mut self) {
        for idx in 0..self.outcomes.len() {
            let Outcome::Token { seq, id, .. } = self.outcomes[idx] else {
                continue;
            };
            if self.scheduler.tokens_of(seq).is_none() {
                continue;
            }
            let is_late = self.executor.takes_late_masks();
            let Some(lane) = self.lane(seq) else { continue };
            let Some(mask) = lane.mask.as_mut() else { continue };
            let LaneMask::Ready(constraint, words) = std::mem::replace(mask, LaneMask::Ordered) else {
                unreachable!("a constrained sequence samples with its mask");
            };
            let arrival = is_late.then(|| lane.promises.next()).flatten();
            if arrival.is_some() {
                *mask = LaneMask::Promised;
                self.scheduler.let_sample(seq);
            }
            self.mask_workers.order(MaskOrder {
                seq,
                stage: MaskStage::Next(constraint, id),
                words,
                arrival,
            });
        }
    }

    /// The longest time that a step which is done has waited for a mask.
    pub(crate) fn longest_mask_wait(&self, plan: &StepPlan) -> Duration {
        let sampling = (plan.rows.iter()).filter(|row| row.output == PlannedOutput::Sample);
        let waits = sampling.filter_map(|row| {
            let lane = self.lanes.get(row.seq.slot())?.as_ref()?;
            let is_promised = lane.seq == row.seq && matches!(lane.mask, Some(LaneMask::Promised));
            is_promised.then(|| lane.promises.arrival()).flatten()
        });
        waits
            .map(|arrival| arrival.waited())
            .max()
            .unwrap_or(Duration::ZERO)
    }

    /// Takes in the masks that a step waited for, before its tokens are committed.
    pub(crate) fn take_late_masks(&mut self, plan: &StepPlan, now_us: u64) {
        let tolerated = Duration::from_micros(self.last_step_us / 8).max(SHORT);
        let mut longest = Duration::ZERO;
        for row in &plan.rows {
            if row.output == PlannedOutput::Sample
                && let Some(lane) = self.lane(row.seq)
                && matches!(lane.mask, Some(LaneMask::Promised))
            {
                longest = longest.max(lane.promises.note_wait(tolerated));
            }
        }
        self.tally.masks.note_wait(longest);
        self.wait_for_masks(Duration::ZERO, now_us);
    }

    /// Takes in the masks that are ready, and waits a little for the others.
    pub(crate) fn gather_masks(&mut self, now_us: u64) {
        if self.mask_workers.n_open() == 0 {
            return;
        }
        let step = Duration::from_micros(self.last_step_us);
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

    fn wait_for_masks(&mut self, patience: Duration, now_us: u64) {
        if self.mask_workers.n_open() == 0 {
            return;
        }
        let mut results = std::mem::take(&mut self.mask_results);
        self.mask_workers.wait_for_all(patience, &mut results);
        self.take_masks(&mut results, now_us);
        self.mask_results = results;
    }

    /// Counts the rows that a step goes without since their masks are not there.
    pub(crate) fn note_missed_masks(&mut self) {
        let n_missed = self.scheduler.n_without_mask();
        if n_missed == 0 {
            return;
        }
        self.tally.masks.n_missed += n_missed as u64;
        for lane in self.lanes.iter_mut().flatten() {
            if matches!(lane.mask, Some(LaneMask::Ordered)) && self.scheduler.is_without_mask(lane.seq) {
                let n_missed = lane.promises.miss_step();
                self.tally.masks.longest_missed = self.tally.masks.longest_missed.max(n_missed);
            }
        }
    }

    /// Whether some sequence cannot take part in a step before its mask is there.
    fn misses_masks(&self) -> bool {
        (self.lanes.iter().flatten()).any(|lane| matches!(lane.mask, Some(LaneMask::Ordered)))
    }

    /// Waits for a mask where nothing else is to be done. Returns whether there was one to wait for.
    pub(crate) fn wait_for_mask(&mut self, now_us: u64) -> bool {
        if self.mask_workers.n_open() == 0 || self.has_step_in_flight() {
            return false;
        }
        let mut results = std::mem::take(&mut self.mask_results);
        self.mask_workers.wait_for_one(&mut results);
        self.take_masks(&mut results, now_us);
        self.mask_results = results;
        true
    }

    fn take_masks(&mut self, results: &mut Vec<MaskResult>, now_us: u64) {
        for MaskResult {
            seq,
            words,
            constraint,
            took,
        } in results.drain(..)
        {
            self.tally.masks.add(took);
            let step = Duration::from_micros(self.last_step_us).max(SHORT);
            let Some(lane) = self.lane(seq) else {
                continue;
            };
            match constraint {
                Ok((constraint, is_done)) => {
                    lane.promises.note_time(took, step);
                    lane.promises.take_part();
                    // A sequence whose mask was promised may sample already, or has a row in a step.
                    let was_promised = matches!(lane.mask, Some(LaneMask::Promised));
                    lane.mask = Some(LaneMask::Ready(constraint, words));
                    if is_done {
                        self.scheduler.end(seq, End::Stop, &mut self.outcomes);
                    } else if !was_promised {
                        self.scheduler.let_sample(seq);
                    }
                }
                Err(failure) => {
                    lane.mask = Some(LaneMask::Failed(failure));
                    self.scheduler.end(seq, End::ConstraintFailed, &mut self.outcomes);
                }
            }
        }
        self.publish_outcomes(Cause::Caller, now_us);
    }
}

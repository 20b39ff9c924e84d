//! Masks: how constrained sequences get the mask of their next token.
//!
//! A part of [`Core`] that stands apart because plain sequences know none of it. A token that was sampled goes to the
//! workers at once, and its sequence takes part in a step again once the mask is back. Invariants: a row of a constrained
//! sequence that samples always has its mask; the engine waits for masks while it has nothing else to do, and else for
//! a small part of a step at most.

use std::time::Duration;

use crate::{
    arena::SeqId,
    cause::Cause,
    core::Core,
    lane_mask::LaneMask,
    mask_workers::{MaskOrder, MaskResult, MaskStage},
    outcome::{End, Outcome},
};

/// Constraints that are begun before their sequences are admitted, so that first masks are ready in time. Those of a longer
/// queue take no memory yet.
const MAX_BEGUN_EARLY: usize = 16;

/// How long a step that would leave out constrained sequences waits for their masks where no other sequence decodes.
const PATIENCE_ALONE: Duration = Duration::from_millis(20);

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
            let Some(mask) = self.lane(seq).and_then(|lane| lane.mask.as_mut()) else {
                continue;
            };
            match std::mem::replace(mask, LaneMask::Ordered) {
                LaneMask::Ready(constraint, words) => self.mask_workers.order(MaskOrder {
                    seq,
                    stage: MaskStage::Next(constraint, id),
                    words,
                }),
                _ => unreachable!("a constrained sequence samples with its mask"),
            }
        }
    }

    /// Takes in the masks that are ready, and waits a little for the others.
    pub(crate) fn gather_masks(&mut self, now_us: u64) {
        if self.mask_workers.n_open() == 0 {
            return;
        }
        let step = Duration::from_micros(self.last_step_us);
        let patience = if self.has_step_in_flight() {
            // The device works meanwhile.
            step / 2
        } else if self.scheduler.n_decoding() == 0 {
            PATIENCE_ALONE
        } else {
            (step / 32).clamp(Duration::from_micros(50), Duration::from_millis(5))
        };
        let mut results = std::mem::take(&mut self.mask_results);
        self.mask_workers.wait_for_all(patience, &mut results);
        self.take_masks(&mut results, now_us);
        self.mask_results = results;
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
        } in results.drain(..)
        {
            let Some(lane) = self.lane(seq) else {
                continue;
            };
            match constraint {
                Ok((constraint, is_done)) => {
                    lane.mask = Some(LaneMask::Ready(constraint, words));
                    if is_done {
                        self.scheduler.end(seq, End::Stop, &mut self.outcomes);
                    } else {
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

//! Whether the next step should wait for the tokens of the one in flight, because drafts after them pay.
//!
//! Part of [`Scheduler`]. Invariant: a draft is expected only where the step would have room for it.

use crate::{
    arena::SeqId,
    draft::budget::{DraftTimes, ONE},
    plan::{
        scheduler::{
            Scheduler,
            drafts::{DraftPlaces, max_draft_of, n_costs_of},
        },
        sequence::{Masking, Sequence},
    },
};

/// Returns the likely next draft of a sequence if the token in flight is the one that its look-up predicts:
/// its length, and a function that returns the probability by offset.
fn likely_draft(sequence: &mut Sequence, max_draft: usize) -> Option<(usize, impl Fn(usize) -> u64 + use<>)> {
    if sequence.masking != Masking::Off || sequence.n_pending != 1 {
        return None;
    }
    // After the token in flight.
    let max_draft = max_draft_of(sequence, sequence.tokens.len() + 1, max_draft);
    let drafter = sequence.drafter.as_mut()?;
    let found = drafter.find(&sequence.tokens)?;
    let acceptance = drafter.acceptance;
    // The first token is the one in flight.
    let n_following = drafter.look_up().n_following(found).saturating_sub(1);
    let max = max_draft.min(n_following);
    (max > 0).then_some((max, move |offset: usize| acceptance.of(found, offset)))
}

/// Returns the length of a sequence's next draft if all of it is already known: the sequence is constrained
/// and waits for the step in flight, its newest token has arrived, and its next ones have masks.
fn known_draft(sequence: &Sequence, max_draft: usize) -> Option<usize> {
    if sequence.masking == Masking::Off || sequence.n_pending != 0 {
        return None;
    }
    let n_tokens = sequence.tokens.len();
    let guess = sequence.drafter.as_ref()?.masked_guess(n_tokens)?;
    let max = max_draft_of(sequence, n_tokens, max_draft).min(guess.tokens.len());
    (max > 0).then_some(max)
}

impl Scheduler {
    /// Returns whether a sequence may have drafts.
    pub(crate) fn may_draft(&self, id: SeqId) -> bool {
        (self.sequences.get(id)).is_some_and(|sequence| sequence.drafter.is_some())
    }

    /// Returns whether a running sequence still has prompt inputs to compute.
    pub(crate) fn has_prompts(&self) -> bool {
        (self.running.iter()).any(|&id| self.sequences[id].n_to_plan() > 1)
    }

    /// Returns whether a step that waits for the newest tokens is likely to produce more per time than one
    /// that does not, through drafts from look-ups or forced tokens. The waiting time is part of the times of
    /// steps with drafts.
    pub(crate) fn is_worth_waiting(&mut self, times: DraftTimes) -> bool {
        let mut budget = self.likely_budget(Some(times));
        let max_draft = self.config.speculation.max_draft();
        let room_of_rows = (self.config.limits.max_logit_rows).saturating_sub(self.running.len());
        budget.n_left = budget.n_left.min(room_of_rows);
        let (without, mut taken) = (budget, DraftPlaces::default());
        for idx in 0..self.running.len() {
            let id = self.running[idx];
            let sequence = &mut self.sequences[id];
            let n_costs = n_costs_of(sequence);
            if let Some(max) = known_draft(sequence, max_draft) {
                let max = self.likely_place(id, max, &mut taken);
                let sequence = &self.sequences[id];
                let drafter = sequence.drafter.as_ref().expect("it has a draft");
                let guess = (drafter.masked_guess(sequence.tokens.len())).expect("it has a draft");
                let (len, gain) = budget.best_len(max, n_costs, |offset| drafter.likelihood(guess, offset));
                budget.take(len, n_costs, gain, 0);
                continue;
            }
            let Some((max, likelihood)) = likely_draft(sequence, max_draft) else {
                continue;
            };
            let max = self.likely_place(id, max, &mut taken);
            let (len, gain) = budget.best_len(max, n_costs, |offset| likelihood(offset + 1));
            budget.take(len, n_costs, gain * likelihood(0) / ONE, 0);
        }
        budget.pays_over(&without)
    }
}

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

/// Returns the probability of the token in flight that a look-up predicts, and then those of the draft tokens
/// after it. The first is 1 if the whole draft is known: the sequence is constrained and waits for the step in
/// flight, its newest token has arrived, and its next ones have masks.
fn next_draft(sequence: &mut Sequence, max_draft: usize) -> Option<Vec<u64>> {
    let is_free = sequence.masking == Masking::Off;
    if sequence.n_pending != usize::from(is_free) {
        return None;
    }
    let n_tokens = sequence.tokens.len();
    let max = max_draft_of(sequence, n_tokens + sequence.n_pending, max_draft);
    let drafter = sequence.drafter.as_mut()?;
    let acceptance = drafter.acceptance;
    let draft = if !is_free {
        drafter.masked_draft(n_tokens)?
    } else if drafter.model_draft(n_tokens).is_none() {
        drafter.find(&sequence.tokens, 1 + max)?
    } else {
        return None;
    };
    let known = (!is_free).then_some(ONE);
    let of_draft = draft.classes[..draft.tokens.len()].iter();
    let likelihoods = known
        .into_iter()
        .chain(of_draft.map(|&class| acceptance.of(class)));
    Some(likelihoods.take(1 + max).collect())
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
            let Some(likelihoods) = next_draft(sequence, max_draft) else {
                continue;
            };
            let max = self.likely_place(id, likelihoods.len() - 1, &mut taken);
            let (len, gain) = budget.best_len(max, n_costs, |offset| likelihoods[1 + offset]);
            budget.take(len, n_costs, gain * likelihoods[0] / ONE, 0);
        }
        budget.pays_over(&without)
    }
}

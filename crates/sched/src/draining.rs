//! Draining: whether a step waits until the tokens of the one before are known.
//!
//! A part of [`Core`] that stands apart because executors of one step in flight know none of it. Where two steps are in flight, the host's work
//! hides behind the device's, but a draft begins with a token that is known. So a step waits for the newest tokens where a draft behind them
//! is likely to give more than the host's work takes; else two steps stay in flight. Invariant: next to a step with drafts there is no other,
//! so that sequences stay together.

use crate::{
    core::Core,
    draft_plan::{DraftPlaces, max_draft_of},
    draft_times::{DraftTimes, ONE},
    drafting::Speculation,
    plan::PlannedOutput,
    scheduler::Scheduler,
    sequence::{Masking, Sequence},
};

impl Core {
    /// Whether the next step waits for the tokens of the newest one in flight.
    pub(crate) fn waits_for_newest(&mut self) -> bool {
        let speculation = self.scheduler.config().speculation;
        let Some(newest) = self.in_flight.back() else {
            return false;
        };
        if !newest.plan.drafts.is_empty() {
            return true;
        }
        let mut sampling = newest
            .plan
            .rows
            .iter()
            .filter(|row| row.output == PlannedOutput::Sample);
        if !sampling.any(|row| self.scheduler.may_draft(row.seq)) {
            return false;
        }
        if !matches!(speculation, Speculation::Auto { .. }) {
            return true;
        }
        // Next to prompts nothing is guessed.
        if self.scheduler.has_prompts() {
            return false;
        }
        if self.may_draft_ahead() {
            return true;
        }
        let n_decode = self.scheduler.n_decoding();
        let times = self.board.with_step_times(|times| times.draft_times(n_decode));
        times.is_some_and(|times| self.scheduler.is_worth_waiting(times))
    }
}

/// What a sequence's next draft is likely to give where the token on its way is what its look-up says: its length, the gain, and how
/// likely that is.
fn likely_draft(sequence: &mut Sequence, max_draft: usize) -> Option<(usize, impl Fn(usize) -> u64 + use<>)> {
    if sequence.masking != Masking::Off || sequence.n_pending != 1 {
        return None;
    }
    // Behind the token on its way.
    let max_draft = max_draft_of(sequence, sequence.tokens.len() + 1, max_draft);
    let drafter = sequence.drafter.as_mut()?;
    let found = drafter.find(&sequence.tokens)?;
    let acceptance = drafter.acceptance;
    // The first token is the one on its way.
    let n_following = drafter.look_up().n_following(found).saturating_sub(1);
    let max = max_draft.min(n_following);
    (max > 0).then_some((max, move |offset: usize| acceptance.of(found, offset)))
}

/// Tokens that a sequence's next draft may have where all of it is known by now: a constrained one that waits for the step in flight, whose newest
/// token is there and of whose next ones there are masks.
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
    /// Whether a sequence guesses tokens ahead.
    pub(crate) fn may_draft(&self, id: crate::arena::SeqId) -> bool {
        (self.sequences.get(id)).is_some_and(|sequence| sequence.drafter.is_some())
    }

    /// Whether a sequence that runs has inputs of its prompt left.
    pub(crate) fn has_prompts(&self) -> bool {
        (self.running.iter()).any(|&id| self.sequences[id].n_to_plan() > 1)
    }

    /// Whether a step that waits for the newest tokens is likely to give more in its time, by drafts of what is looked up or what constraints
    /// force, than one that does not. What waiting takes is part of the times of steps with drafts.
    pub(crate) fn is_worth_waiting(&mut self, times: DraftTimes) -> bool {
        let mut room = self.likely_room(Some(times));
        let without = room.expected;
        let max_draft = self.config.speculation.max_draft();
        let room_of_rows = (self.config.limits.max_logit_rows).saturating_sub(self.running.len());
        room.n_left = room.n_left.min(room_of_rows);
        let (mut dearest, mut taken) = (1, DraftPlaces::default());
        for idx in 0..self.running.len() {
            let id = self.running[idx];
            let sequence = &mut self.sequences[id];
            // Behind a wrong guess a recurrent state is computed again.
            let n_costs = if sequence.state.is_some() { 2 } else { 1 };
            if let Some(max) = known_draft(sequence, max_draft) {
                let max = self.likely_place(id, max, &mut taken);
                let sequence = &self.sequences[id];
                let drafter = sequence.drafter.as_ref().expect("it has a draft");
                let guess = (drafter.masked_guess(sequence.tokens.len())).expect("it has a draft");
                let (len, gain) = room.best_len(max, n_costs, |offset| drafter.likelihood(guess, offset));
                if len > 0 {
                    dearest = dearest.max(n_costs);
                }
                room.take(len, gain);
                continue;
            }
            let Some((max, likelihood)) = likely_draft(sequence, max_draft) else {
                continue;
            };
            let max = self.likely_place(id, max, &mut taken);
            let (len, gain) = room.best_len(max, n_costs, |offset| likelihood(offset + 1));
            if len > 0 {
                dearest = dearest.max(n_costs);
            }
            room.take(len, gain * likelihood(0) / ONE);
        }
        let [first, with_drafts] = [0, room.n_planned].map(|n_drafted| u64::from(times.0[n_drafted]));
        let time = first + with_drafts.saturating_sub(first) * dearest;
        // As a step's first draft must, it promises a fortieth more for each of up to four rows.
        let margin = (without / ONE).clamp(1, 4);
        room.n_planned > 0 && room.expected * 256 > without / 40 * (40 + margin) * time
    }
}

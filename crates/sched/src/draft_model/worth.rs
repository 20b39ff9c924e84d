//! Whether asking a draft model pays: before a draft, and before each of its passes.
//!
//! Part of [`DraftModel`]. Invariant: a decision runs no pass; it changes only the rests of the ledger, and with
//! them which hidden states are stored.

use crate::{
    draft::budget::{DraftBudget, ONE},
    draft_model::{
        DraftModel, Seat,
        ledger::{PAID_SHARE, Probe},
    },
};

/// Before a pass was measured, it is assumed to take this fraction of a step of the first model plus the microseconds below.
const UNMEASURED_DIVISOR: u64 = 8;
const UNMEASURED_US: u64 = 50;

/// Maximum expected length of an answer, in tokens, for deciding whether computing its prompt for drafts pays.
const MAX_EXPECTED_TOKENS: usize = 512;

/// The step before which drafts are made, if they are weighed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeighedStep {
    pub(crate) budget: DraftBudget,
    /// Number of its rows without drafts.
    pub(crate) n_rows: usize,
    /// Its duration without drafts.
    pub(crate) step_us: u64,
    /// Acceptance probability for sequences without observations, in 1/65536.
    pub(crate) of_new: u64,
}

impl WeighedStep {
    /// Converts microseconds to 1/256 of the step without drafts.
    pub(super) fn relative(&self, us: u64) -> u64 {
        us * 256 / self.step_us
    }
}

impl DraftModel {
    /// Returns whether to start drafts: either their first pass is expected to pay, or it is time for a probe. Otherwise nothing
    /// is computed and no sequence is caught up.
    pub(super) fn is_worth_a_draft(&mut self, seats: &[Seat<'_>], step: &WeighedStep) -> bool {
        let n_seats = seats.len();
        let pass_us = self.pass_us(n_seats, step);
        let gain = seats.iter().map(|seat| seat.want.acceptance.of_model()).sum();
        if step.budget.pays(n_seats, gain, step.relative(pass_us)) {
            self.ledger.note_paying();
            return true;
        }
        let n_missing = seats.iter().map(|seat| self.n_missing(seat)).sum();
        let cost_us = self.probe_us(n_missing, pass_us);
        // The larger of their acceptance and that of other sequences.
        let likelihoods = seats.iter().map(|seat| seat.want.acceptance.of_model());
        let best = likelihoods.fold(step.of_new, u64::max);
        let alone_time = step.relative(self.pass_us(1, step));
        let is_due = self.ledger.is_due(&Probe {
            n_rows: step.n_rows,
            step_us: step.step_us,
            cost_us,
            catches_up: n_missing > 2 * n_seats as u64,
            is_hopeful: step.budget.alone().pays(1, best, alone_time),
        });
        if let Some(hidden) = self.hidden.as_mut().filter(|_| !self.ledger.keeps_states()) {
            hidden.drop_given();
        }
        is_due
    }

    /// Decides about the next pass of a draft; returns its expected time, in 1/256 of the step without drafts,
    /// if it should run.
    pub(super) fn is_worth_a_pass(&self, step: Option<&WeighedStep>) -> Option<u64> {
        let n_open = self.n_open();
        if n_open == 0 || self.has_failed {
            return None;
        }
        let Some(step) = step else {
            return Some(0);
        };
        let pass_time = step.relative(self.pass_us(n_open, step));
        if self.drafts.iter().all(|open| open.draft.tokens.is_empty()) {
            return Some(pass_time);
        }
        let open = self.drafts.iter().filter(|draft| draft.is_open);
        let gain = open
            .map(|draft| draft.reach * draft.want.acceptance.of_model() / ONE)
            .sum();
        step.budget.pays(n_open, gain, pass_time).then_some(pass_time)
    }

    /// Returns whether computing a sequence's missing tokens may pay off within the rest of its answer.
    pub(super) fn may_catch_up(&self, seat: &Seat<'_>, step: &WeighedStep) -> bool {
        let n_missing = self.n_missing(seat);
        let n_expected = seat.want.n_left.min(MAX_EXPECTED_TOKENS) as u64;
        // Its share of the steps that it takes part in.
        let answer_us = n_expected * step.step_us / step.n_rows as u64;
        n_missing * self.times.token.unwrap_or(0) <= answer_us / PAID_SHARE
    }

    /// Returns the time of a pass that drafts for `n_seqs` sequences. Before one was measured, it is assumed to be a fraction of
    /// a step plus the time of waking threads.
    fn pass_us(&self, n_seqs: usize, step: &WeighedStep) -> u64 {
        let measured = self.times.drafting(n_seqs);
        measured.unwrap_or(step.step_us / UNMEASURED_DIVISOR + UNMEASURED_US)
    }

    /// Returns the cost of trying a draft for sequences that lack `n_missing` tokens, if a pass takes `pass_us`.
    pub(super) fn probe_us(&self, n_missing: u64, pass_us: u64) -> u64 {
        let token_us = self.times.token.unwrap_or(pass_us / UNMEASURED_DIVISOR);
        n_missing.saturating_mul(token_us).saturating_add(2 * pass_us)
    }

    /// Returns the number of a seat's tokens not computed here.
    fn n_missing(&self, seat: &Seat<'_>) -> u64 {
        let n_computed = (self.lanes.get(&seat.want.seq)).map_or(0, |&own| self.scheduler.n_computed(own));
        seat.tokens.len().saturating_sub(n_computed) as u64
    }
}

//! Draining: whether a step waits until the tokens of the previous one are known.
//!
//! Part of [`Core`], for executors with two steps in flight. Two steps in flight hide the host's work behind
//! the device's, but a draft must begin after a known token. A step therefore waits for the newest tokens if
//! a draft after them is likely to gain more than the host's work costs; otherwise two steps stay in flight.
//! Invariant: a step with drafts is alone in flight, so that sequences stay together.

use crate::{draft::drafter::Speculation, engine::core::Core, plan::step_plan::PlannedOutput};

impl Core {
    /// Returns whether the next step waits for the tokens of the newest one in flight.
    pub(super) fn waits_for_newest(&mut self) -> bool {
        let speculation = self.scheduler.config().speculation;
        let Some(newest) = self.flight.newest() else {
            return false;
        };
        if !newest.drafts.is_empty() {
            return true;
        }
        let mut sampling = newest
            .rows
            .iter()
            .filter(|row| row.output == PlannedOutput::Sample);
        if !sampling.any(|row| self.scheduler.may_draft(row.seq)) {
            return false;
        }
        if !matches!(speculation, Speculation::Auto { .. }) {
            return true;
        }
        // With prompts in the step there are no drafts.
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

//! [`Flight`]: the steps in flight, and the times of those that are done.
//!
//! Owned by [`Core`](super::Core). Invariant: steps leave in the order in which they were added.

use std::collections::VecDeque;

use tokenmill_backend::Ticket;

use crate::plan::step_plan::StepPlan;

/// Steps in flight; see the module.
#[derive(Default)]
pub(super) struct Flight {
    steps: VecDeque<Step>,
    /// The time at which the newest completed step completed.
    last_done_us: u64,
    /// The duration of that step.
    last_step_us: u64,
    /// Plans of earlier steps, whose memory later ones use.
    spare_plans: Vec<StepPlan>,
}

/// A step in flight.
pub(super) struct Step {
    pub(super) ticket: Ticket,
    pub(super) plan: StepPlan,
    pub(super) submitted_us: u64,
    /// How long the device was idle before the step although it could have worked, in microseconds.
    pub(super) idle_us: u64,
}

impl Flight {
    /// Returns an empty plan.
    pub(super) fn take_plan(&mut self) -> StepPlan {
        self.spare_plans.pop().unwrap_or_default()
    }

    /// Keeps the memory of a plan for a later one.
    pub(super) fn recycle(&mut self, plan: StepPlan) {
        self.spare_plans.push(plan);
    }

    /// Adds a submitted step.
    pub(super) fn push(&mut self, step: Step) {
        self.steps.push_back(step);
    }

    /// Removes and returns the oldest step.
    pub(super) fn pop(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Forgets all steps, because the device is lost.
    pub(super) fn clear(&mut self) {
        self.steps.clear();
    }

    /// Records that a step submitted at `submitted_us` is done. Returns how long it took since the step before, in microseconds, without
    /// the time that it waited for masks: that says nothing about other steps.
    pub(super) fn note_done(&mut self, submitted_us: u64, now_us: u64, mask_wait_us: u64) -> u64 {
        let begun_us = submitted_us.max(self.last_done_us);
        self.last_done_us = now_us;
        self.last_step_us = now_us.saturating_sub(begun_us).saturating_sub(mask_wait_us);
        self.last_step_us
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the number of steps in flight.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns the plan of the newest step.
    pub(super) fn newest(&self) -> Option<&StepPlan> {
        self.steps.back().map(|step| &step.plan)
    }

    /// Returns the duration of the newest completed step, in microseconds.
    pub(super) fn last_step_us(&self) -> u64 {
        self.last_step_us
    }

    /// Returns how long a device that could have had a step at `now_us` has had none, in microseconds. An idle
    /// gap longer than a step was not caused by drafting and counts as none.
    pub(super) fn idle_us(&self, now_us: u64) -> u64 {
        let idle_us = now_us.saturating_sub(self.last_done_us);
        if self.is_empty() && idle_us <= self.last_step_us {
            idle_us
        } else {
            0
        }
    }
}

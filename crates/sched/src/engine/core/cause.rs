//! [`Cause`]: the event that made the scheduler report something.
//!
//! The core names it, and the callers' events are made from it. Invariant: tokens come from a completed step,
//! and failures from a failed one.

use tokenmill_backend::StepError;

use crate::{error::EngineError, plan::step_plan::StepPlan};

/// The event that made the scheduler report something.
#[derive(Clone, Copy)]
pub(crate) enum Cause<'a> {
    /// A command or a deadline.
    Caller,
    /// This step, which is complete.
    Step(&'a StepPlan),
    /// A step that failed with this error.
    Failure(&'a StepError),
}

impl Cause<'_> {
    /// Returns the error of the failed step.
    pub(crate) fn step_error(self) -> EngineError {
        match self {
            Self::Failure(error) => EngineError::Step(error.clone()),
            _ => unreachable!("steps fail for a reason"),
        }
    }
}

//! [`Cause`]: what made the scheduler report something.
//!
//! Separate because the core names it and the events are made of it. Invariant: tokens come from a step that is done, and
//! failures from one that failed.

use tokenmill_backend::StepError;

use crate::{error::EngineError, plan::StepPlan};

/// What made the scheduler report something.
#[derive(Clone, Copy)]
pub(crate) enum Cause<'a> {
    /// A command or a deadline.
    Caller,
    /// This step, which is done.
    Step(&'a StepPlan),
    /// A step that failed for this reason.
    Failure(&'a StepError),
}

impl Cause<'_> {
    /// Why the step failed.
    pub(crate) fn step_error(self) -> EngineError {
        match self {
            Self::Failure(error) => EngineError::Step(error.clone()),
            _ => unreachable!("steps fail for a reason"),
        }
    }
}

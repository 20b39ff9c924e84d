//! Planning: the scheduler decides, with integers only, which tokens of which sequences a step computes.
//!
//! [`scheduler`] writes a [`step_plan`] and applies its [`outcome`] to each [`sequence`]; [`batch`] turns the
//! plan into what an executor runs.

pub(crate) mod batch;
pub(crate) mod outcome;
pub(crate) mod scheduler;
pub(crate) mod sequence;
pub(crate) mod step_plan;

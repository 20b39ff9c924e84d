//! Guesses tokens ahead: the ways to guess, and the models that do.

pub use tokenmill_sched::Speculation;

pub use crate::{
    draft_facts::{DraftFacts, LoadedGuesser},
    mtp::{MtpPlan, mtp_plan},
};

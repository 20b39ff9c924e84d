//! Tokens that are guessed ahead: how, and by what.

pub use tokenmill_sched::Speculation;

pub use crate::{
    draft_facts::{DraftFacts, LoadedGuesser},
    mtp::{MtpPlan, mtp_plan},
};

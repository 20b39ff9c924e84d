//! Speculative decoding: its modes, and the models that make drafts.

pub use tokenmill_sched::Speculation;

pub use crate::{
    draft_facts::{DraftFacts, LoadedGuesser},
    mtp::{MtpPlan, mtp_plan},
};

//! Drafts: which tokens a sequence is likely to continue with, and whether verifying them pays.
//!
//! [`drafter`] chooses among a sequence's sources, [`budget`] decides which drafts of a step pay. Invariant:
//! this module knows tokens, probabilities and times, and neither the scheduler nor a model.

pub(crate) mod acceptance;
pub(crate) mod answer_cache;
pub(crate) mod budget;
pub(crate) mod drafter;
pub(crate) mod lookup;
mod ngram;
pub(crate) mod tokens;

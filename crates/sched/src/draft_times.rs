//! [`DraftTimes`]: how long a step takes with drafts.
//!
//! Separate because both what drafts and what weighs a drafting model read it. Invariant: times and certainties are integers.

/// Draft tokens of all sequences in a step, where their number is weighed.
pub(crate) const MAX_STEP_DRAFTS: usize = 32;

/// How long a step takes with draft tokens in it, in 1/256 of the same step without: entry `n` is that of `n` draft tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftTimes(pub [u32; MAX_STEP_DRAFTS + 1]);

/// Certainty, in the unit of likelihoods: 1/65536.
pub(crate) const ONE: u64 = 1 << 16;

//! [`DraftTimes`]: the duration of a step by number of draft tokens.
//!
//! Both drafting and the weighing of a draft model read it. Invariant: times and probabilities are integers.

/// Maximum draft tokens of all sequences in a step whose drafts are weighed.
pub(crate) const MAX_STEP_DRAFTS: usize = 32;

/// Duration of a step with draft tokens, in 1/256 of the same step without: entry `n` is for `n` draft
/// tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftTimes(pub [u32; MAX_STEP_DRAFTS + 1]);

/// Probability 1 in the unit of likelihoods, 1/65536.
pub(crate) const ONE: u64 = 1 << 16;

//! From a generation to the bytes of its answer: whole or as a stream, with log-probabilities.

pub(crate) mod prompt_scores;
pub(crate) mod reply;
pub(crate) mod score_sheet;
pub(crate) mod scores;
pub(crate) mod sse;

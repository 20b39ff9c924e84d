//! [`RowMask`]: the tokens that a row may sample; and [`LateMask`]: a mask that arrives while the step
//! already runs.
//!
//! A late mask is not a plain number, unlike the rest of a batch. Invariant: a promised late mask is delivered
//! or cancelled; a step waits only for masks that a thread is computing.

use std::{fmt, sync::Arc};

/// The tokens that a row may sample.
#[derive(Clone, Debug, Default)]
pub enum RowMask {
    /// All tokens.
    #[default]
    Any,
    /// The tokens of a bit mask over the vocabulary: `ceil(n_vocab / 32)` words of
    /// [`ForwardBatch::mask_words`](crate::ForwardBatch::mask_words) from this one on. Bit `id % 32` of word
    /// `id / 32` belongs to a token; a clear bit forbids it.
    Words(u32),
    /// The tokens of a mask still being computed when the step begins; the row waits for it when it samples.
    Late(Arc<dyn LateMask>),
}

/// A mask that is computed while a step runs.
pub trait LateMask: fmt::Debug + Send + Sync {
    /// Waits for the mask and writes its words to `words`, replacing the previous contents. Returns whether
    /// there is one: if the sequence has ended meanwhile there is none, and the row's result is ignored.
    fn wait(&self, words: &mut Vec<u32>) -> bool;
}

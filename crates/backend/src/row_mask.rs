//! [`RowMask`]: which tokens a row may sample, and [`LateMask`]: how it says so while the step runs already.
//!
//! Separate from the batch because a mask that is late is no plain number. Invariant: whoever promises a late mask keeps the promise
//! or takes it back; a step waits only for masks that a thread computes.

use std::{fmt, sync::Arc};

/// Which tokens a row may sample.
#[derive(Clone, Debug, Default)]
pub enum RowMask {
    /// All.
    #[default]
    Any,
    /// Those of a bit mask over the vocabulary, `ceil(n_vocab / 32)` words of
    /// [`ForwardBatch::mask_words`](crate::ForwardBatch::mask_words) from this one on: bit `id % 32` of word `id / 32`; a clear bit
    /// forbids the token.
    Words(u32),
    /// Those of a mask that is still being computed when the step begins, and that is waited for where the row samples.
    Late(Arc<dyn LateMask>),
}

/// A mask that is computed while a step runs.
pub trait LateMask: fmt::Debug + Send + Sync {
    /// Waits for the mask and writes its words to `words`, whatever was there before. Returns whether there is one: where the
    /// sequence has ended meanwhile there is none, and the row's result is of no interest.
    fn wait(&self, words: &mut Vec<u32>) -> bool;
}

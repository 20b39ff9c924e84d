//! Masking: which constrained sequences may sample.
//!
//! Part of [`Scheduler`]. Invariant: a constrained sequence samples only after it was let, once for each token.

use crate::{
    arena::SeqId,
    plan::{
        scheduler::Scheduler,
        sequence::{Masking, Stage},
    },
};

impl Scheduler {
    /// Lets a constrained sequence sample its next token, because the mask is now ready.
    pub fn let_sample(&mut self, id: SeqId) {
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.masking = Masking::Ready;
        }
    }

    /// Returns the number of running sequences that would sample if their next masks were ready.
    pub fn n_without_mask(&self) -> usize {
        (self.running.iter())
            .filter(|&&id| self.sequences[id].only_misses_mask())
            .count()
    }

    /// Returns whether a sequence is one of [`Self::n_without_mask`].
    pub(crate) fn is_without_mask(&self, id: SeqId) -> bool {
        let sequence = self.sequences.get(id);
        sequence.is_some_and(|sequence| sequence.stage == Stage::Running && sequence.only_misses_mask())
    }

    /// Returns how many of [`Self::n_without_mask`] have generated tokens, so that their readers wait for the
    /// next.
    pub(crate) fn n_streams_without_mask(&self) -> usize {
        (self.running.iter())
            .filter(|&&id| self.sequences[id].only_misses_mask() && self.sequences[id].has_generated())
            .count()
    }
}

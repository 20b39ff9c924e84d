//! [`Lane`]: the engine's data about a sequence, beyond the scheduler's.
//!
//! The core holds one per sequence. Invariant: in a constrained sequence, the lane states how far its next
//! mask is.

use std::sync::Arc;

use tokenmill_backend::SamplingParams;

use crate::{
    arena::SeqId,
    engine::core::{forced_output::ForcedOutput, prefill_progress::PrefillWatch, stopwatch::Stopwatch},
    masks::{
        next_mask::{LaneMask, Promises},
        text::Seen,
    },
    media::Media,
    queue::{event::RequestId, gauge::Place, submission::Opening},
};

/// Added to a sequence's seed at each shift of the context; larger than the number of samples of a request.
const SHIFT_SEED: u64 = 1 << 32;

/// The engine's data about a sequence.
pub(crate) struct Lane {
    pub(crate) seq: SeqId,
    pub(crate) request: RequestId,
    pub(crate) sample: u32,
    /// Sampling parameters; `None` for a forward pass.
    pub(crate) sampling: Option<Arc<SamplingParams>>,
    /// Sampling parameters of the first tokens, which must not end the answer.
    pub(crate) opening: Option<Opening>,
    /// Predetermined output, if given.
    pub(crate) forced: Option<ForcedOutput>,
    /// Its non-token inputs.
    pub(crate) media: Arc<[Media]>,
    /// The mask of its next token, if it is constrained.
    pub(crate) mask: Option<LaneMask>,
    pub(crate) promises: Promises,
    /// Tokens that its constraint forces.
    pub(crate) expected: Option<Seen>,
    /// Its newest tokens if their mask is not ordered yet, because the draft model may predict what follows.
    pub(crate) unordered: Option<Vec<u32>>,
    pub(crate) stopwatch: Stopwatch,
    /// Reports the progress of its prompt, if its caller asked for it and it computes the prompt.
    pub(crate) prefill: Option<PrefillWatch>,
    /// Number of prompt tokens that this sequence counts for in the queue gauge.
    pub(crate) n_queued_tokens: usize,
    pub(crate) place: Place,
}

impl Lane {
    /// Adjusts sampling after a context shift. Positions repeat, and random draws are keyed by position, so
    /// the seed changes; otherwise the same draws would repeat too.
    fn shift_sampling(sampling: &mut Arc<SamplingParams>) {
        // Always clone: a clone restarts draws that depend on earlier ones.
        let mut params = SamplingParams::clone(sampling);
        params.seed = params.seed.wrapping_add(SHIFT_SEED);
        *sampling = Arc::new(params);
    }

    /// Returns the tokens that its constraint forces after the known ones.
    pub(crate) fn expected_behind(&self, known: &[u32]) -> Option<&[u32]> {
        self.expected.as_ref()?.behind(known)
    }

    /// See [`Self::shift_sampling`]; the opening ends at the same token.
    pub(crate) fn shift(&mut self, n_dropped: usize) {
        if let Some(sampling) = &mut self.sampling {
            Self::shift_sampling(sampling);
        }
        if let Some(opening) = &mut self.opening {
            Self::shift_sampling(&mut opening.sampling);
            opening.take_off(n_dropped);
        }
        if let Some(forced) = &mut self.forced {
            forced.shift(n_dropped);
        }
    }
}

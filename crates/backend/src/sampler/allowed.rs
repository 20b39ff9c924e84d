//! [`Allowed`]: the logits of a row that may be picked.
//!
//! Masks are applied only here, so that a masked row is read in place like any other. Invariant: tokens come
//! in the order of their ids, and a forbidden logit is not read.

use super::select::Candidate;

/// Number of tokens per word of a mask.
const WORD: usize = u32::BITS as usize;

/// A row and its mask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed<'a> {
    logits: &'a [f32],
    /// Bit `id % 32` of word `id / 32`; without a mask all tokens may be picked.
    mask: Option<&'a [u32]>,
}

impl<'a> Allowed<'a> {
    /// `mask: [n_vocab / 32]`, rounded up.
    pub(super) fn new(logits: &'a [f32], mask: Option<&'a [u32]>) -> Self {
        debug_assert!(mask.is_none_or(|mask| mask.len() == logits.len().div_ceil(WORD)));
        Self { logits, mask }
    }

    /// Returns the number of tokens, allowed or not.
    pub(super) fn n_vocab(self) -> usize {
        self.logits.len()
    }

    /// Returns the logit of an allowed token.
    pub(super) fn logit(self, id: u32) -> f32 {
        self.logits[id as usize]
    }

    /// Calls `f` for each allowed token.
    #[inline]
    pub(super) fn for_each(self, mut f: impl FnMut(Candidate)) {
        let Some(mask) = self.mask else {
            for (id, &logit) in (0..).zip(self.logits) {
                f(Candidate { id, logit });
            }
            return;
        };
        for (first_id, (logits, &word)) in (0..).step_by(WORD).zip(self.logits.chunks(WORD).zip(mask)) {
            let mut left = word;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                // The last word may have more bits than there are tokens.
                if let Some(&logit) = logits.get(bit as usize) {
                    f(Candidate {
                        id: first_id + bit,
                        logit,
                    });
                }
            }
        }
    }

    /// Returns the lowest id with the highest logit; `None` if all are negative infinity.
    pub(super) fn argmax(self) -> Option<u32> {
        let Some(mask) = self.mask else {
            return argmax(self.logits);
        };
        let (mut best_id, mut best) = (None, f32::NEG_INFINITY);
        for (first_id, (logits, &word)) in (0..).step_by(WORD).zip(self.logits.chunks(WORD).zip(mask)) {
            // Most words allow all tokens or none. If a word allows some, it rarely has a token likelier than
            // the best.
            if word == 0 || max(logits) <= best {
                continue;
            }
            let chunk = Allowed {
                logits,
                mask: Some(std::slice::from_ref(&word)),
            };
            chunk.for_each(|candidate| {
                if candidate.logit > best {
                    (best_id, best) = (Some(first_id + candidate.id), candidate.logit);
                }
            });
        }
        best_id
    }
}

/// Returns the lowest id with the highest logit; `None` if all are negative infinity.
pub(super) fn argmax(logits: &[f32]) -> Option<u32> {
    let max = max(logits);
    if max == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|&logit| logit == max).map(|id| id as u32)
}

fn max(logits: &[f32]) -> f32 {
    // Uses lanes and ignores NaN, which was checked before, so that the loop is vectorized.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
}

//! [`PassTimes`]: measured times of a draft model's passes.
//!
//! The model weighs its passes by them. Invariant: every figure comes from passes that ran.

/// Times of passes in microseconds, as moving averages.
#[derive(Default)]
pub(crate) struct PassTimes {
    /// Times of passes that draft one token per sequence, by number of sequences.
    drafting: Vec<Option<u64>>,
    /// Time per token of a pass that computes many.
    pub(crate) token: Option<u64>,
}

/// Returns whether a pass computes no prompt. The first token of a draft follows one or two that were sampled
/// since.
pub(crate) fn is_drafting(n_seqs: usize, n_tokens: usize) -> bool {
    n_tokens <= 2 * n_seqs
}

impl PassTimes {
    pub(crate) fn observe(&mut self, n_seqs: usize, n_tokens: usize, us: u64) {
        let follow = |average: &mut Option<u64>, us: u64| {
            *average = Some(average.map_or(us, |old| (old * 7 + us.min(old * 2 + 1)) / 8));
        };
        if is_drafting(n_seqs, n_tokens) {
            if self.drafting.len() <= n_seqs {
                self.drafting.resize(n_seqs + 1, None);
            }
            follow(&mut self.drafting[n_seqs], us);
        } else {
            follow(&mut self.token, us / n_tokens as u64);
        }
    }

    /// Returns the time of a pass for `n_seqs` sequences, measured for the nearest number; `None` before any
    /// measurement.
    pub(crate) fn drafting(&self, n_seqs: usize) -> Option<u64> {
        let at = |n: usize| self.drafting.get(n).copied().flatten();
        let below = (1..=n_seqs)
            .rev()
            .find_map(|n| Some(at(n)? * n_seqs as u64 / n as u64));
        at(n_seqs)
            .or_else(|| (n_seqs..self.drafting.len()).find_map(at))
            .or(below)
    }
}

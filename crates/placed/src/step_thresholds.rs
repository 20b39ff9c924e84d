//! [`StepThresholds`]: the minimum step size at which the device computes the parts that both sides have.
//!
//! It may be set after steps have been measured, unlike the placement. Invariant: neither number is 0.

/// Minimum step size, in tokens, at which the device computes the feed-forward networks that both sides have.
/// Decoding steps are separate, because the device records and replays them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepThresholds {
    /// For steps with one token per sequence: the number of sequences.
    pub decode: usize,
    /// For other steps: the number of tokens, including those of prompts, draft tokens and decoding
    /// sequences.
    pub other: usize,
}

impl StepThresholds {
    /// Returns the same threshold for all steps; `usize::MAX` leaves all to the host.
    pub fn of_all(n_tokens: usize) -> Self {
        Self {
            decode: n_tokens.max(1),
            other: n_tokens.max(1),
        }
    }

    /// Returns whether the device computes a step.
    pub(crate) fn goes_to_device(self, n_tokens: usize, n_seqs: usize) -> bool {
        let threshold = if n_tokens == n_seqs {
            self.decode
        } else {
            self.other
        };
        n_tokens >= threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_decode_have_a_threshold_of_their_own() {
        let thresholds = StepThresholds { decode: 4, other: 2 };
        let check = |n_tokens, n_seqs, expected| {
            let found = thresholds.goes_to_device(n_tokens, n_seqs);
            assert_eq!(found, expected, "{n_tokens} tokens of {n_seqs} sequences");
        };
        check(3, 3, false);
        check(4, 4, true);
        check(3, 2, true);
        check(2, 1, true);
        check(1, 1, false);
        assert_eq!(StepThresholds::of_all(0), StepThresholds::of_all(1));
        assert!(StepThresholds::of_all(0).goes_to_device(1, 1));
    }
}

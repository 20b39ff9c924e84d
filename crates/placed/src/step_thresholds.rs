//! [`StepThresholds`]: from how many tokens of a step on the device computes what both sides have.
//!
//! Separate from the placement because it may be set once steps have been measured. Invariant: neither is 0.

/// From how many tokens of a step on the device computes the feed-forward networks that both sides have. Steps that decode are apart: what
/// the device does in them is recorded and replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepThresholds {
    /// Of steps with one token for each sequence: sequences.
    pub decode: usize,
    /// Of other steps: tokens of prompts, guesses and sequences that decode next to them.
    pub other: usize,
}

impl StepThresholds {
    /// The same of all steps; `usize::MAX` leaves all to the host.
    pub fn of_all(n_tokens: usize) -> Self {
        Self {
            decode: n_tokens.max(1),
            other: n_tokens.max(1),
        }
    }

    /// Whether a step is the device's.
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

//! [`ModelGuess`]: a draft model's prediction, and its reliability.
//!
//! The scheduler weighs predictions without knowing the model. A predicted token's acceptance probability
//! depends on the probability that the draft model itself gave it, as measured: the fraction of tokens with
//! similar probability that were accepted. Invariant: integers only, so that a decision can be replayed from
//! the observations.

use crate::draft::budget::ONE;

/// Upper bounds of the probability classes, except the last.
const BOUNDS: [f32; 5] = [0.3, 0.5, 0.7, 0.9, 0.98];

/// A draft model's predicted tokens after the newest of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelGuess {
    /// Number of tokens in the sequence before them.
    pub(crate) at: usize,
    pub(crate) tokens: Vec<u32>,
    /// The probability class of each token, see [`class_of`].
    pub(crate) classes: Vec<u8>,
}

/// Returns the class of a token to which its model gave a probability.
pub(crate) fn class_of(probability: f32) -> u8 {
    BOUNDS.iter().filter(|&&bound| probability >= bound).count() as u8
}

/// Acceptance probability by class, in 1/65536, as a moving average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelAcceptance {
    of_class: [u64; BOUNDS.len() + 1],
    /// Probability over all classes, for tokens not predicted yet.
    of_any: u64,
}

impl Default for ModelAcceptance {
    /// Returns the prior, before any observation.
    fn default() -> Self {
        Self {
            of_class: [15, 35, 50, 70, 85, 95].map(|percent| ONE * percent / 100),
            of_any: ONE * 7 / 10,
        }
    }
}

impl ModelAcceptance {
    pub(crate) fn of(&self, class: u8) -> u64 {
        self.of_class[usize::from(class)]
    }

    pub(crate) fn of_any(&self) -> u64 {
        self.of_any
    }

    /// Adds an observation with weight 1/`weight`.
    pub(crate) fn observe(&mut self, class: u8, is_accepted: bool, weight: u64) {
        let seen = if is_accepted { ONE - ONE / 64 } else { 0 };
        for average in [&mut self.of_class[usize::from(class)], &mut self.of_any] {
            *average = (*average * (weight - 1) + seen) / weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probable_guesses_are_believed_as_far_as_they_came_out() {
        assert_eq!([0.0, 0.3, 0.69, 0.7, 0.95, 1.0].map(class_of), [0, 1, 2, 3, 4, 5]);
        assert_eq!(class_of(f32::NAN), 0);
        let mut acceptance = ModelAcceptance::default();
        for _ in 0..100 {
            acceptance.observe(5, false, 16);
            acceptance.observe(1, true, 16);
        }
        assert!(acceptance.of(5) < ONE / 50 && acceptance.of(1) > ONE * 9 / 10);
        assert_eq!(acceptance.of(3), ModelAcceptance::default().of(3));
    }
}

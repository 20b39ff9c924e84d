//! [`Acceptance`]: how often draft tokens come out right, by class.
//!
//! Every sequence has its own, which begins with that of all. Invariant: integers only, so that a decision can
//! be replayed from the observations.

use crate::draft::{
    budget::ONE,
    tokens::{Class, DraftSource},
};

/// Acceptance probabilities before any observation, in percent: of tokens after matches below 4, 8 and 16
/// tokens and longer, of earlier answers, of forced tokens, and of a draft model's tokens by probability.
const PRIOR: [u64; Class::COUNT] = [20, 40, 60, 80, 97, 90, 15, 35, 50, 70, 85, 95];

/// Acceptance probabilities in 1/65536, as moving averages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance {
    of_class: [u64; Class::COUNT],
    /// Average over all tokens of a draft model, for classes that were not drafted yet.
    of_model: u64,
}

impl Default for Acceptance {
    /// Returns the prior.
    fn default() -> Self {
        Self {
            of_class: PRIOR.map(|percent| ONE * percent / 100),
            of_model: ONE * 7 / 10,
        }
    }
}

impl Acceptance {
    /// Returns the probability that a token of a class is right if those before it are.
    pub(crate) fn of(&self, class: Class) -> u64 {
        self.of_class[class.index()]
    }

    /// Returns the probability for a token that a draft model has not drafted yet.
    pub(crate) fn of_model(&self) -> u64 {
        self.of_model
    }

    /// Adds an observation with weight 1/`weight`.
    pub(crate) fn observe(&mut self, class: Class, is_accepted: bool, weight: u64) {
        let seen = if is_accepted { ONE - ONE / 64 } else { 0 };
        let of_model = (class.source() == DraftSource::Model).then_some(&mut self.of_model);
        for average in [&mut self.of_class[class.index()]].into_iter().chain(of_model) {
            *average = (*average * (weight - 1) + seen) / weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_draft_model_are_believed_as_far_as_they_came_out() {
        let [unlikely, likely, sure] = [0.3, 0.7, 1.0].map(Class::of_probability);
        let mut acceptance = Acceptance::default();
        for _ in 0..100 {
            acceptance.observe(sure, false, 16);
            acceptance.observe(unlikely, true, 16);
        }
        assert!(acceptance.of(sure) < ONE / 50 && acceptance.of(unlikely) > ONE * 9 / 10);
        assert_eq!(acceptance.of(likely), Acceptance::default().of(likely));
    }

    #[test]
    fn other_tokens_do_not_count_for_a_draft_model() {
        let mut acceptance = Acceptance::default();
        for class in [Class::of_match(2), Class::EARLIER, Class::FORCED] {
            acceptance.observe(class, false, 16);
            assert!(acceptance.of(class) < Acceptance::default().of(class));
        }
        assert_eq!(acceptance.of_model(), Acceptance::default().of_model());
        acceptance.observe(Class::of_probability(1.0), false, 16);
        assert!(acceptance.of_model() < Acceptance::default().of_model());
    }
}

//! [`DecideParams`]: how questions are answered.
//!
//! Apart from the answers, because a program checks a request before it has a model. Invariant: parameters that pass the check divide by
//! no zero and ask for a bounded number of prompts.

use std::time::Duration;

use super::state::{MAX_IMAGES, State};
use crate::{
    decide_error::DecideError,
    decision::question::{Question, check},
};

/// Least temperature of a request.
const LEAST_TEMPERATURE: f64 = 1e-6;

/// How questions are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct DecideParams {
    /// Asks each question in this many orders of its options, if there are as many, and averages the probabilities.
    pub permutations: usize,
    /// Divides the logits of the labels or the scores of a head, next to the temperatures of the model's file and those fitted to it.
    pub temperature: f64,
    /// Fails the request unless it ends within this time.
    pub deadline: Option<Duration>,
    /// Separates its cached prompts from those of requests with another salt.
    pub cache_salt: u64,
    /// Names of the questions, for models whose prompts have them. Questions without are numbered.
    pub names: Vec<String>,
    /// Whether the temperatures next to the model are applied.
    pub applies_fitted: bool,
}

impl Default for DecideParams {
    fn default() -> Self {
        Self {
            permutations: 1,
            temperature: 1.0,
            deadline: None,
            cache_salt: 0,
            names: Vec::new(),
            applies_fitted: true,
        }
    }
}

impl DecideParams {
    /// Checks a request as far as that needs no model.
    ///
    /// # Errors
    /// Questions, options, images or texts that are too many or too long, options that are alike, and parameters out of range.
    pub fn check(&self, state: &State, questions: &[Question]) -> Result<(), DecideError> {
        self.check_extent(state, questions, (1, 0))?;
        if state.n_images() > MAX_IMAGES {
            return Err(DecideError::ImageCount {
                found: state.n_images(),
                maximum: MAX_IMAGES,
            });
        }
        // Below it a product with a model's own temperature may become 0.
        if !(self.temperature >= LEAST_TEMPERATURE && self.temperature.is_finite()) {
            let found = self.temperature;
            return Err(DecideError::Temperature { found });
        }
        Ok(())
    }

    /// Checks the number of prompts and the bytes of their texts, for a model that asks in at least `n_orders` orders and lists
    /// `listed_bytes` of other questions in each prompt.
    pub(super) fn check_extent(
        &self,
        state: &State,
        questions: &[Question],
        (n_orders, listed_bytes): (usize, usize),
    ) -> Result<(), DecideError> {
        let permutations = match self.permutations {
            0 => 0,
            permutations => permutations.max(n_orders),
        };
        check(
            questions,
            state.n_bytes().saturating_add(listed_bytes),
            permutations,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperatures_that_may_become_zero_are_refused() {
        let check = |temperature: f64| {
            let params = DecideParams {
                temperature,
                ..DecideParams::default()
            };
            params.check(&State::from("a"), &[Question::predicate("Is it?")])
        };
        assert!(check(LEAST_TEMPERATURE).is_ok() && check(1000.0).is_ok());
        for temperature in [0.0, -1.0, 5e-324, 1e-7, f64::NAN, f64::INFINITY] {
            assert!(check(temperature).is_err(), "{temperature}");
        }
    }
}

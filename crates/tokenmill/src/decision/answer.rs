//! [`Decision`]: the probabilities of a question's options, and the figures made of them.
//!
//! Arithmetic on one row of logits, without tokens or text. Invariant: every sum has one fixed order, so that the same logits give
//! the same bits.

/// The answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The probability of each option, in the order of the question; they add up to 1. A predicate has yes and no.
    pub probabilities: Vec<f64>,
    /// The share of the probability of all tokens that the labels have together where an answer begins, from 0 to 1; the mean of it if the
    /// question was asked in several orders. No temperature changes it. Near 0 the model wanted to write something else, and the
    /// probabilities mean little. Always 1 for a decision head, which scores options and nothing else.
    pub label_mass: f64,
}

impl Decision {
    /// Returns the index of the likeliest option, the first of equals.
    pub fn likeliest(&self) -> usize {
        let mut best = 0;
        for (idx, &probability) in self.probabilities.iter().enumerate() {
            if probability > self.probabilities[best] {
                best = idx;
            }
        }
        best
    }

    /// Returns the expected level of a score, counted from 0.
    pub fn expected_level(&self) -> f64 {
        self.mean(|idx| idx as f64)
    }

    /// Returns how sure a choice is: 0 if all options are equally likely, 1 if one is certain.
    ///
    /// Source: the definition of `confidence` in the System One API.
    pub fn choice_confidence(&self) -> f64 {
        let n = self.probabilities.len() as f64;
        if n <= 1.0 {
            return 1.0;
        }
        let top = self.probabilities[self.likeliest()];
        ((top - 1.0 / n) / (1.0 - 1.0 / n)).max(0.0)
    }

    /// Returns how sure a score is: 1 if one level is certain, 0 if the levels are on average as far from the likeliest one as all
    /// levels are from their middle.
    ///
    /// Source: the definition of `confidence` in the System One API.
    pub fn score_confidence(&self) -> f64 {
        let n = self.probabilities.len();
        if n <= 1 {
            return 1.0;
        }
        let likeliest = self.likeliest() as f64;
        let middle = (n as f64 - 1.0) / 2.0;
        let spread = (0..n).map(|idx| (idx as f64 - middle).abs()).sum::<f64>() / n as f64;
        (1.0 - self.mean(|idx| (idx as f64 - likeliest).abs()) / spread).max(0.0)
    }

    fn mean(&self, value: impl Fn(usize) -> f64) -> f64 {
        let terms = self.probabilities.iter().enumerate();
        terms.map(|(idx, probability)| value(idx) * probability).sum()
    }

    /// Reads a row of logits, `[n_vocab]`, at the tokens of the labels, one for each option: a softmax over the labels at a temperature,
    /// and the labels' share of the softmax over all tokens. `None` if a logit is not a number.
    pub(crate) fn of_logits(logits: &[f32], labels: &[u32], temperature: f64) -> Option<Self> {
        if logits.iter().any(|logit| logit.is_nan()) {
            return None;
        }
        let of_label = |&label: &u32| f64::from(logits[label as usize]);
        let of_options: Vec<f64> = labels.iter().map(of_label).collect();
        let top_label = of_options.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        if !top_label.is_finite() || !top.is_finite() {
            return None;
        }
        let of_labels: f64 = of_options.iter().map(|logit| (logit - top).exp()).sum();
        let of_all: f64 = logits.iter().map(|&logit| (f64::from(logit) - top).exp()).sum();
        Some(Self {
            probabilities: softmax(&of_options, temperature),
            label_mass: of_labels / of_all,
        })
    }

    /// Divides the logarithms of the probabilities by a temperature.
    pub(crate) fn tempered(&self, temperature: f64) -> Self {
        if temperature == 1.0 {
            return self.clone();
        }
        // The smallest number stands for 0, whose logarithm is none.
        let logs = self.probabilities.iter().map(|p| p.max(f64::MIN_POSITIVE).ln());
        Self {
            probabilities: softmax(&logs.collect::<Vec<_>>(), temperature),
            label_mass: self.label_mass,
        }
    }

    /// Averages the answers to a question in several orders.
    pub(crate) fn mean_of(readings: &[Self]) -> Self {
        let n = readings.len() as f64;
        let n_options = readings.first().map_or(0, |reading| reading.probabilities.len());
        let mean = |value: &dyn Fn(&Self) -> f64| readings.iter().map(value).sum::<f64>() / n;
        Self {
            probabilities: (0..n_options)
                .map(|idx| mean(&|reading| reading.probabilities[idx]))
                .collect(),
            label_mass: mean(&|reading| reading.label_mass),
        }
    }
}

/// Returns the softmax of finite values at a temperature.
pub(crate) fn softmax(values: &[f64], temperature: f64) -> Vec<f64> {
    let top = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights = values.iter().map(|value| ((value - top) / temperature).exp());
    let mut weights: Vec<f64> = weights.collect();
    let sum: f64 = weights.iter().sum();
    for weight in &mut weights {
        *weight /= sum;
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(probabilities: &[f64]) -> Decision {
        Decision {
            probabilities: probabilities.to_vec(),
            label_mass: 1.0,
        }
    }

    #[track_caller]
    fn is_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found}, expected {expected}");
    }

    #[test]
    fn confidence_is_0_for_a_guess_and_1_for_certainty() {
        is_near(decision(&[0.5, 0.5]).choice_confidence(), 0.0);
        is_near(decision(&[1.0, 0.0, 0.0]).choice_confidence(), 1.0);
        is_near(decision(&[0.95, 0.05]).choice_confidence(), 0.9);
        is_near(decision(&[1.0]).choice_confidence(), 1.0);
        is_near(decision(&[0.0, 1.0, 0.0]).score_confidence(), 1.0);
        is_near(decision(&[1.0]).score_confidence(), 1.0);
        // The mean distance from the likeliest level is 0.2, and of all levels from their middle 2/3.
        is_near(decision(&[0.0, 0.2, 0.8]).score_confidence(), 0.7);
        is_near(decision(&[0.5, 0.0, 0.5]).score_confidence(), 0.0);
        is_near(decision(&[0.0, 0.2, 0.8]).expected_level(), 1.8);
        assert_eq!(decision(&[0.2, 0.4, 0.4]).likeliest(), 1);
    }

    #[test]
    fn a_row_is_read_at_its_labels() {
        // Probabilities 1/8, 4/8, 2/8 and 1/8 of the whole vocabulary.
        let logits = [0.0, 4f32.ln(), 2f32.ln(), 0.0];
        let read = Decision::of_logits(&logits, &[2, 1], 1.0).unwrap();
        assert!((read.probabilities[0] - 1.0 / 3.0).abs() < 1e-7, "{read:?}");
        assert!((read.label_mass - 0.75).abs() < 1e-7, "{read:?}");
        let cooler = Decision::of_logits(&logits, &[2, 1], 0.5).unwrap();
        assert!((cooler.probabilities[0] - 0.2).abs() < 1e-7, "{cooler:?}");
        assert_eq!(cooler.label_mass, read.label_mass, "the mass has no temperature");
        let mean = Decision::mean_of(&[read.clone(), cooler]);
        assert!((mean.probabilities[0] - f64::midpoint(1.0 / 3.0, 0.2)).abs() < 1e-7);
        assert_eq!(
            Decision::mean_of(std::slice::from_ref(&read)),
            read,
            "one order changes no bit"
        );
        let far = Decision::of_logits(&[-1e30, 0.0, 1e30], &[0, 1], 1.0).unwrap();
        assert_eq!((far.probabilities[1], far.label_mass), (1.0, 0.0));
    }

    #[test]
    fn logits_that_are_no_numbers_give_no_answer() {
        for logits in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert_eq!(Decision::of_logits(&logits, &[0, 1], 1.0), None);
        }
    }
}

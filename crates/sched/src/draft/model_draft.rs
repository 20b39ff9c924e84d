//! [`ModelGuess`]: a draft model's prediction, and its reliability.
//!
//! The scheduler weighs predictions without knowing the model. A predicted token's acceptance probability
//! depends on the probability that the draft model itself gave it, as measured: the fraction of tokens with
//! similar probability that were accepted. Invariant: integers only, so that a decision can be replayed from
//! the observations.

use crate::draft::times::{DraftTimes, MAX_STEP_DRAFTS, ONE};

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

/// Weighs passes of a draft model against the steps that they save, in 1/256 of a step without drafts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighing {
    times: DraftTimes,
    /// Duration of a step without drafts.
    pub(crate) step_us: u64,
    /// Number of its rows.
    pub(crate) n_rows: usize,
    /// Expected tokens of the step, in 1/65536.
    expected: u64,
    /// Its duration together with the passes before it.
    time: u64,
    n_drafted: usize,
    /// Acceptance probability for sequences without observations, in 1/65536.
    of_new: u64,
}

impl Weighing {
    /// Creates the weighing of a step of `n_rows` rows that takes `step_us` without drafts. `of_new` gives
    /// the acceptance for sequences without observations.
    pub(crate) fn new(times: DraftTimes, step_us: u64, n_rows: usize, of_new: &ModelAcceptance) -> Self {
        Self {
            times,
            step_us: step_us.max(1),
            n_rows: n_rows.max(1),
            expected: n_rows as u64 * ONE,
            time: 256,
            n_drafted: 0,
            of_new: of_new.of_any(),
        }
    }

    /// Returns whether a pass of `pass_us` for one sequence might pay in a step of that sequence alone, with
    /// the larger of `likelihood` and the acceptance of other sequences. It assumes the duration of the
    /// current step, which is rather too long.
    pub(crate) fn may_pay_alone(&self, likelihood: u64, pass_us: u64) -> bool {
        let alone = Self {
            expected: ONE,
            time: 256,
            n_drafted: 0,
            ..*self
        };
        alone.pays(1, likelihood.max(self.of_new), pass_us)
    }

    /// Returns whether a pass that takes `pass_us`, predicts `n_more` tokens and has an expected gain of
    /// `gain` lowers the step's cost per token. The first pass must gain a tenth: times are measured,
    /// probabilities adapt slowly, and a marginal gain often turns out to be a loss.
    pub(crate) fn pays(&self, n_more: usize, gain: u64, pass_us: u64) -> bool {
        let margin = if self.n_drafted == 0 { 44 } else { 40 };
        self.with(n_more, pass_us)
            .is_some_and(|time| (self.expected + gain) * self.time * 40 > self.expected * time * margin)
    }

    /// Adds the pass.
    pub(crate) fn take(&mut self, n_more: usize, pass_us: u64) {
        if let Some(time) = self.with(n_more, pass_us) {
            self.time = time;
            self.n_drafted += n_more;
        }
    }

    /// Adds the actual gain of its tokens.
    pub(crate) fn gain(&mut self, gain: u64) {
        self.expected += gain;
    }

    /// Returns the duration with another pass; `None` for more draft tokens than are weighed.
    fn with(&self, n_more: usize, pass_us: u64) -> Option<u64> {
        let DraftTimes(times) = &self.times;
        let n_drafted = self.n_drafted + n_more;
        let verified = (n_drafted <= MAX_STEP_DRAFTS)
            .then(|| u64::from(times[n_drafted].saturating_sub(times[self.n_drafted])))?;
        Some(self.time + verified + pass_us * 256 / self.step_us)
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

    /// Returns the number of passes that pay in a step of `n_rows` rows. Each pass takes `pass_percent` of a
    /// step; its tokens are right `percent` of the time and cost `row_percent` each to verify.
    fn n_passes(n_rows: usize, pass_percent: u64, row_percent: u32, percent: u64) -> usize {
        let times = DraftTimes(std::array::from_fn(|n| 256 + 256 * row_percent * n as u32 / 100));
        let of_new = ModelAcceptance::default();
        let mut weighing = Weighing::new(times, 10_000, n_rows, &of_new);
        let mut reach = ONE * n_rows as u64;
        (0..16)
            .take_while(|_| {
                reach = reach * percent / 100;
                let pays = weighing.pays(n_rows, reach, pass_percent * 100);
                weighing.take(n_rows, pass_percent * 100);
                weighing.gain(reach);
                pays
            })
            .count()
    }

    #[test]
    fn passes_are_made_as_long_as_they_pay() {
        assert_eq!(n_passes(1, 10, 5, 100), 16);
        assert_eq!(n_passes(1, 10, 5, 10), 0);
        assert_eq!(
            n_passes(1, 100, 0, 95),
            0,
            "a draft as slow as the model gains nothing"
        );
        assert!((2..=5).contains(&n_passes(1, 15, 5, 70)));
        assert!(n_passes(1, 15, 5, 90) > n_passes(1, 15, 5, 70));
        assert_eq!(n_passes(8, 15, 10, 70), 0, "eight rows fill a step");
    }
}

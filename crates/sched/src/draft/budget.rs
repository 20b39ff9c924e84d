//! [`DraftBudget`]: which drafts of a step pay, and how long they are.
//!
//! Drafts raise the tokens that a step is expected to give, and its time. They pay as long as the quotient
//! rises. Look-ups, masked drafts and passes of a draft model are all weighed here. Invariant: integers only,
//! so that a choice can be replayed.

/// Maximum draft tokens of all sequences in a step whose drafts are weighed.
pub(crate) const MAX_STEP_DRAFTS: usize = 32;

/// Duration of a step with draft tokens, in 1/256 of the same step without: entry `n` is for `n` draft
/// tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftTimes(pub [u32; MAX_STEP_DRAFTS + 1]);

/// Probability 1 in the unit of likelihoods, 1/65536.
pub(crate) const ONE: u64 = 1 << 16;

/// The gain of a step's first draft, in fortieths, that is required at most.
const MAX_MARGIN: u64 = 4;

/// The drafts planned for a step so far, and the remaining room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftBudget {
    /// Duration of the step by number of draft tokens; `None` if every draft should be as long as fits.
    times: Option<DraftTimes>,
    /// Draft tokens that still fit.
    pub(crate) n_left: usize,
    /// Draft tokens planned.
    n_planned: usize,
    /// The step with them.
    rate: Rate,
}

/// The tokens that a step is expected to give, and its duration.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// In 1/65536.
    tokens: u64,
    /// In 1/256 of the step without drafts.
    time: u64,
}

impl Rate {
    /// Returns the rate of a step of `n_rows` sequences without drafts.
    fn of_rows(n_rows: usize) -> Self {
        Self {
            tokens: n_rows as u64 * ONE,
            time: 256,
        }
    }

    /// Returns whether this rate exceeds another by more than `margin` fortieths.
    fn exceeds(self, other: Self, margin: u64) -> bool {
        self.tokens * other.time * 40 > other.tokens * self.time * (40 + margin)
    }
}

impl DraftBudget {
    /// A step without room for drafts.
    pub(crate) const NONE: Self = Self {
        times: None,
        n_left: 0,
        n_planned: 0,
        rate: Rate { tokens: 0, time: 256 },
    };

    /// Creates the budget of a step with `n_rows` sampling rows and at most `n_left` draft tokens.
    pub(crate) fn new(times: Option<DraftTimes>, n_left: usize, n_rows: usize) -> Self {
        Self {
            times,
            n_left,
            n_planned: 0,
            rate: Rate::of_rows(n_rows),
        }
    }

    /// Returns the budget of the same step if it had one row and no drafts. It is rather too slow for that.
    pub(crate) fn alone(&self) -> Self {
        Self::new(self.times, self.n_left, 1)
    }

    /// Returns whether the planned drafts pay together, compared with the same step `without` them.
    pub(crate) fn pays_over(&self, without: &Self) -> bool {
        self.n_planned > 0 && self.rate.exceeds(without.rate, without.margin())
    }

    /// Returns the gain, in fortieths, that a further draft must promise. A gain below a fortieth is ignored,
    /// since times are measured. A step's first draft must gain a fortieth for each of up to four sampling
    /// rows: next to many rows a draft gains little, and all of them wait if it loses.
    fn margin(&self) -> u64 {
        if self.n_planned > 0 {
            1
        } else {
            (self.rate.tokens / ONE).clamp(1, MAX_MARGIN)
        }
    }

    /// Returns the draft length, at most `max`, that maximizes the step's tokens per time, and the expected
    /// gain in tokens. `likelihood` is the acceptance probability of the draft token at an offset, given
    /// those before it; each draft row is computed `n_costs` times.
    pub(crate) fn best_len(
        &self,
        max: usize,
        n_costs: u64,
        likelihood: impl Fn(usize) -> u64,
    ) -> (usize, u64) {
        let max = max.min(self.n_left);
        if self.times.is_none() {
            return (max, 0);
        }
        let (mut best, mut best_rate, mut margin) = ((0, 0), self.rate, self.margin());
        let (mut reach, mut gain) = (ONE, 0);
        for len in 1..=max {
            reach = reach * likelihood(len - 1) / ONE;
            gain += reach;
            let Some(rate) = self.with(len, n_costs, gain, 0) else {
                break;
            };
            if rate.exceeds(best_rate, margin) {
                (best, best_rate, margin) = ((len, gain), rate, 0);
            }
        }
        best
    }

    /// Returns whether a pass of a draft model pays that takes `pass_time`, in 1/256 of a step without
    /// drafts, and drafts `n_more` tokens with an expected gain of `gain`. The first pass must gain a tenth:
    /// times are measured, probabilities adapt slowly, and a marginal gain often turns out to be a loss.
    pub(crate) fn pays(&self, n_more: usize, gain: u64, pass_time: u64) -> bool {
        let margin = if self.n_planned > 0 { 0 } else { MAX_MARGIN };
        let with = self.with(n_more, 1, gain, pass_time);
        with.is_some_and(|rate| rate.exceeds(self.rate, margin))
    }

    /// Plans `n_more` draft tokens with an expected gain of `gain`, whose rows are computed `n_costs` times,
    /// after a pass that takes `pass_time`.
    pub(crate) fn take(&mut self, n_more: usize, n_costs: u64, gain: u64, pass_time: u64) {
        if let Some(rate) = self.with(n_more, n_costs, gain, pass_time) {
            self.rate = rate;
        }
        self.n_left -= n_more;
        self.n_planned += n_more;
    }

    /// Adds the gain of draft tokens that were planned before it was known.
    pub(crate) fn gain(&mut self, gain: u64) {
        self.rate.tokens += gain;
    }

    /// Returns the rate with further draft tokens; `None` if it is not weighed, or for more than are.
    fn with(&self, n_more: usize, n_costs: u64, gain: u64, pass_time: u64) -> Option<Rate> {
        let DraftTimes(times) = self.times.as_ref()?;
        let with_rows = *times.get(self.n_planned + n_more)?;
        let rows_time = with_rows.saturating_sub(times[self.n_planned]);
        Some(Rate {
            tokens: self.rate.tokens + gain,
            time: self.rate.time + u64::from(rows_time) * n_costs + pass_time,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of a step in which each draft token adds `percent`.
    fn times(percent: u32) -> DraftTimes {
        DraftTimes(std::array::from_fn(|n| 256 + 256 * percent * n as u32 / 100))
    }

    fn best_len(percent: u32, n_rows: usize, likelihood_percent: u64) -> usize {
        let budget = DraftBudget::new(Some(times(percent)), 40, n_rows);
        budget.best_len(16, 1, |_| ONE * likelihood_percent / 100).0
    }

    #[test]
    fn a_draft_is_as_long_as_it_pays() {
        assert_eq!(best_len(0, 1, 50), 16);
        assert_eq!(best_len(10, 1, 5), 0);
        assert_eq!(best_len(10, 1, 100), 16);
        let some = best_len(10, 1, 60);
        assert!((1..=4).contains(&some), "{some}");
        assert!(best_len(10, 1, 90) > some);
    }

    #[test]
    fn the_more_a_step_gives_anyway_the_less_a_draft_pays() {
        // A row that costs a tenth of a step is cheap for one sequence and expensive for eight, whose step
        // gives eight tokens.
        assert!(best_len(10, 1, 70) > 0);
        assert_eq!(best_len(10, 8, 70), 0);
        assert_eq!(
            best_len(10, 8, 98),
            0,
            "a few hundredths for all are not worth it"
        );
        assert!(best_len(7, 8, 98) > 0);
    }

    #[test]
    fn drafts_fill_the_room_where_times_are_not_weighed() {
        let mut budget = DraftBudget::new(None, 20, 2);
        let (len, gain) = budget.best_len(16, 1, |_| 0);
        budget.take(len, 1, gain, 0);
        assert_eq!((len, budget.best_len(16, 1, |_| 0).0), (16, 4));
    }

    #[test]
    fn a_draft_whose_rows_are_computed_twice_must_gain_for_both() {
        let n_costs_of = |percent| {
            let budget = DraftBudget::new(Some(times(percent)), 40, 1);
            [1, 2].map(|n_costs| budget.best_len(16, n_costs, |_| ONE / 2).0)
        };
        let [once, twice] = n_costs_of(10);
        assert!(0 < twice && twice < once, "{once} {twice}");
        assert_eq!(n_costs_of(30), [1, 0]);
    }

    #[test]
    fn drafts_pay_together_as_far_as_the_first_of_a_step_must() {
        let without = DraftBudget::new(Some(times(10)), 40, 1);
        let with_gain = |percent: u64| {
            let mut budget = without;
            budget.take(1, 1, ONE * percent / 100, 0);
            budget.pays_over(&without)
        };
        assert!(!without.pays_over(&without));
        assert_eq!([10, 12, 14].map(with_gain), [false, false, true]);
    }

    /// Returns the number of passes that pay in a step of `n_rows` rows. Each pass takes `pass_percent` of a
    /// step; its tokens are right `percent` of the time and cost `row_percent` each to verify.
    fn n_passes(n_rows: usize, pass_percent: u64, row_percent: u32, percent: u64) -> usize {
        let mut budget = DraftBudget::new(Some(times(row_percent)), usize::MAX, n_rows);
        let mut reach = ONE * n_rows as u64;
        (0..16)
            .take_while(|_| {
                reach = reach * percent / 100;
                let pays = budget.pays(n_rows, reach, pass_percent * 256 / 100);
                budget.take(n_rows, 1, 0, pass_percent * 256 / 100);
                budget.gain(reach);
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

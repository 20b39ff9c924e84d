//! [`DraftBudget`]: how many draft tokens fit in a step, and how long a draft pays.
//!
//! It knows only probabilities and times. Invariant: integers only, so that a choice can be replayed.

use crate::draft::times::{DraftTimes, MAX_STEP_DRAFTS, ONE};

/// The draft tokens planned for a step so far, and the remaining room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftBudget {
    /// Duration of the step by number of draft tokens; `None` if every draft should be as long as fits.
    pub(crate) times: Option<DraftTimes>,
    /// Draft tokens that still fit.
    pub(crate) n_left: usize,
    /// Draft tokens planned.
    pub(crate) n_planned: usize,
    /// Expected tokens of the step, in 1/65536.
    pub(crate) expected: u64,
}

impl DraftBudget {
    /// A step without room for drafts.
    pub(crate) const NONE: Self = Self {
        times: None,
        n_left: 0,
        n_planned: 0,
        expected: 0,
    };

    /// Creates the room of a step with `n_rows` sampling rows and at most `n_left` draft tokens.
    pub(crate) fn new(times: Option<DraftTimes>, n_left: usize, n_rows: usize) -> Self {
        Self {
            times,
            n_left,
            n_planned: 0,
            expected: n_rows as u64 * ONE,
        }
    }

    /// Returns the draft length, at most `max`, that maximizes the step's tokens per time. `likelihood` is
    /// the acceptance probability of the draft token at an offset, given those before it; each draft row is
    /// computed `n_costs` times. A gain below a fortieth is ignored, since times are measured. A step's first
    /// draft must gain a fortieth for each of up to four sampling rows: next to many rows a draft gains
    /// little, and all of them wait if it loses.
    pub(crate) fn best_len(
        &self,
        max: usize,
        n_costs: u64,
        likelihood: impl Fn(usize) -> u64,
    ) -> (usize, u64) {
        let max = max.min(self.n_left);
        let Some(DraftTimes(times)) = self.times else {
            return (max, 0);
        };
        let max = max.min(MAX_STEP_DRAFTS - self.n_planned);
        let time_without = u64::from(times[self.n_planned]);
        let (mut best_len, mut best_gain) = (0, 0);
        let margin = if self.n_planned == 0 {
            (self.expected / ONE).clamp(1, 4)
        } else {
            1
        };
        let (mut best_expected, mut best_time) = (self.expected / 40 * (40 + margin), time_without);
        let (mut reach, mut gain) = (ONE, 0);
        for len in 1..=max {
            reach = reach * likelihood(len - 1) / ONE;
            gain += reach;
            let with_draft = u64::from(times[self.n_planned + len]);
            let time = time_without + with_draft.saturating_sub(time_without) * n_costs;
            if (self.expected + gain) * best_time > best_expected * time {
                (best_len, best_gain) = (len, gain);
                (best_expected, best_time) = (self.expected + gain, time);
            }
        }
        (best_len, best_gain)
    }

    /// Plans a draft of `len` tokens with an expected gain of `gain`.
    pub(crate) fn take(&mut self, len: usize, gain: u64) {
        self.n_left -= len;
        self.n_planned += len;
        self.expected += gain;
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
        let room = DraftBudget::new(Some(times(percent)), 40, n_rows);
        room.best_len(16, 1, |_| ONE * likelihood_percent / 100).0
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
        let mut room = DraftBudget::new(None, 20, 2);
        let (len, gain) = room.best_len(16, 1, |_| 0);
        room.take(len, gain);
        assert_eq!((len, room.best_len(16, 1, |_| 0).0), (16, 4));
    }
}

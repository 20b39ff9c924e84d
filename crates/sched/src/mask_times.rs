//! [`MaskTimes`]: how long masks took, and what steps lost to them.
//!
//! Separate because it is a figure for operators alone: nothing is decided by it. Invariant: it only grows.

use std::time::Duration;

/// How long the masks of constrained samples took since the engine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaskTimes {
    /// Masks by their time: those up to each of [`Self::BOUNDS_US`], and behind them the longer ones.
    pub counts: [u64; Self::BOUNDS_US.len() + 1],
    /// All of them together, microseconds.
    pub total_us: u64,
    /// The longest, microseconds.
    pub longest_us: u64,
    /// What steps waited for masks at their end, microseconds. Of each step the longest wait counts.
    pub waited_us: u64,
    /// The longest such wait, microseconds.
    pub longest_wait_us: u64,
    /// Rows that steps went without since a mask was not there.
    pub n_missed: u64,
    /// The most steps that went one after the other without a row for which there was no mask.
    pub longest_missed: u64,
}

impl MaskTimes {
    /// Bounds of the counts, microseconds.
    pub const BOUNDS_US: [u64; 12] = [
        50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 1_000_000,
    ];

    pub(crate) fn add(&mut self, took: Duration) {
        let us = took.as_micros() as u64;
        self.counts[Self::BOUNDS_US.partition_point(|&bound| bound < us)] += 1;
        self.total_us += us;
        self.longest_us = self.longest_us.max(us);
    }

    pub(crate) fn note_wait(&mut self, waited: Duration) {
        let us = waited.as_micros() as u64;
        self.waited_us += us;
        self.longest_wait_us = self.longest_wait_us.max(us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_up_to_its_bound() {
        let mut times = MaskTimes::default();
        for us in [0, 50, 51, 2_000_000] {
            times.add(Duration::from_micros(us));
        }
        assert_eq!((times.counts[0], times.counts[1], times.counts[12]), (2, 1, 1));
        assert_eq!((times.total_us, times.longest_us), (2_000_101, 2_000_000));
    }
}

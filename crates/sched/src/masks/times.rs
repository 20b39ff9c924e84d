//! [`MaskTimes`]: how long masks took, and the time that steps lost to them.
//!
//! It is a metric for operators; no decision depends on it. Invariant: it only grows.

use std::time::Duration;

/// Times of the masks of constrained samples since the engine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaskTimes {
    /// Histogram of mask times: the counts up to each of [`Self::BOUNDS_US`], then the longer ones.
    pub counts: [u64; Self::BOUNDS_US.len() + 1],
    /// Total time, in microseconds.
    pub total_us: u64,
    /// Longest time, in microseconds.
    pub longest_us: u64,
    /// Total time that steps waited for masks at their end, in microseconds: the longest wait of each step.
    pub waited_us: u64,
    /// Longest such wait, in microseconds.
    pub longest_wait_us: u64,
    /// Number of rows that steps left out because a mask was not ready.
    pub n_missed: u64,
    /// Maximum number of consecutive steps that left out the same row.
    pub longest_missed: u64,
}

impl MaskTimes {
    /// Upper bounds of the histogram, in microseconds.
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

//! [`StepTimes`]: durations of steps on this machine, measured as they run.
//!
//! They determine the size of prefill chunks while sequences decode, and answer how much a batch gains.
//! Invariant: every figure comes from steps that ran; without such steps there is no answer.

use crate::draft::budget::{DraftTimes, MAX_STEP_DRAFTS};

/// Moving averages over the observed steps, in 1/256 microseconds, so that integers suffice.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    /// Steps that only decoded, by number of rows.
    decode: Vec<Average>,
    /// Cost of one prefill token in a step with decode rows.
    prefill_token: Average,
    /// The last grant of prefill tokens, which limits how fast the grant grows.
    granted: usize,
    /// Steps with drafts, by number of rows including draft rows.
    drafted: Vec<Average>,
    /// Number of observed steps that only decoded.
    n_steps: u32,
}

/// Number of steps after which a time is stale: contexts have grown, or others use the machine.
const MAX_AGE: u32 = 512;

/// Minimum cost of a draft row, as this fraction of a step, until that many rows were measured.
const UNMEASURED_DIVISOR: u64 = 16;

/// Prefill tokens in a step with decode rows before anything is measured.
const FIRST_GRANT: usize = 32;

/// Number of observations after which an average limits the effect of a single one.
const N_TRUSTED: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Average {
    n_seen: u32,
    us_by_256: u64,
    /// The step in which it was last observed.
    seen_at: u32,
}

impl Average {
    /// Does the same as [`Average::add`], but once the average is trusted, a value counts at most as twice the average: a
    /// step that lost its processor for a while may take many times as long, which says nothing about the
    /// next one.
    ///
    /// For durations of whole steps. Differences of durations may be zero half of the time, which would keep
    /// an average at zero.
    fn add_limited(&mut self, us_by_256: u64) {
        const ONE_US: u64 = 256;
        self.add(if self.n_seen >= N_TRUSTED {
            us_by_256.min((2 * self.us_by_256).max(ONE_US))
        } else {
            us_by_256
        });
    }

    fn add(&mut self, us_by_256: u64) {
        self.n_seen = self.n_seen.saturating_add(1);
        // The mean of the first eight, then a moving average.
        let weight = u64::from(self.n_seen.min(N_TRUSTED));
        self.us_by_256 = (self.us_by_256 * (weight - 1) + us_by_256) / weight;
    }

    fn get(self) -> Option<u64> {
        (self.n_seen > 0).then_some(self.us_by_256)
    }
}

/// Measured throughput of decoding several sequences in one batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Sequences.
    pub n_sequences: usize,
    /// Total tokens per second of all sequences.
    pub tokens_per_s: f64,
    /// Speedup over one sequence alone; `None` if one alone was not measured.
    pub over_single: Option<f64>,
}

impl StepTimes {
    /// Records a step: its decode rows, its prefill tokens and its duration.
    pub(crate) fn observe(&mut self, n_decode: usize, n_prefill_tokens: usize, us: u64) {
        if n_decode == 0 {
            return;
        }
        if n_prefill_tokens == 0 {
            add_step(&mut self.decode, n_decode, us, &mut self.n_steps);
        } else if let Some((decode_us_by_256, n_more)) = self.measured_us_by_256(n_decode) {
            // Rows beyond the measured numbers count as prefill tokens, here and where durations are
            // predicted. Otherwise a few prefill tokens would be charged with all new rows, and prompts would
            // stall while a batch fills.
            let more = (us * 256).saturating_sub(decode_us_by_256);
            self.prefill_token.add(more / (n_prefill_tokens + n_more) as u64);
        }
    }

    /// Records a step of `n_rows` rows, some of them draft rows, and its duration.
    pub(crate) fn observe_drafts(&mut self, n_rows: usize, us: u64) {
        add_step(&mut self.drafted, n_rows, us, &mut self.n_steps);
    }

    /// Returns the duration of a step of `n_decode` sequences with drafts. Between measured numbers of rows
    /// it is interpolated. Beyond them the slope continues, but is at least the assumed cost of unmeasured
    /// rows. `None` until the step without drafts has been measured recently.
    pub(crate) fn draft_times(&self, n_decode: usize) -> Option<DraftTimes> {
        let age = |average: &Average| self.n_steps.wrapping_sub(average.seen_at);
        let base = self.decode.get(n_decode)?;
        if base.n_seen == 0 || age(base) >= MAX_AGE {
            return None;
        }
        let base = base.us_by_256.max(1);
        let measured = |n_drafted: usize| {
            let average = self.drafted.get(n_decode + n_drafted)?;
            // A single step may have lost its processor, so averages of few observations expire sooner.
            let max_age = MAX_AGE >> 5_u32.saturating_sub(average.n_seen);
            let is_fresh = average.n_seen > 0 && age(average) < max_age;
            is_fresh.then(|| average.us_by_256.max(base))
        };
        let mut times = [256; MAX_STEP_DRAFTS + 1];
        let (mut last, mut last_us) = (0, base);
        let relative = |us: u64| u32::try_from(us * 256 / base).unwrap_or(u32::MAX);
        for n_drafted in 1..=MAX_STEP_DRAFTS {
            let Some(us) = measured(n_drafted) else {
                continue;
            };
            let whole = (n_drafted - last) as u64;
            for (done, time) in (1..).zip(&mut times[last + 1..=n_drafted]) {
                *time = relative((last_us * (whole - done) + us * done) / whole);
            }
            (last, last_us) = (n_drafted, us);
        }
        let row_us = ((last_us - base) / last.max(1) as u64).max(base / UNMEASURED_DIVISOR);
        for (n_more, time) in (1..).zip(&mut times[last + 1..]) {
            *time = relative(last_us + row_us * n_more);
        }
        Some(DraftTimes(times))
    }

    /// Returns the duration of a step of `n_decode` sequences without drafts, in microseconds; `None` until
    /// it has been measured.
    pub(crate) fn step_us(&self, n_decode: usize) -> Option<u64> {
        let us_by_256 = self.decode.get(n_decode)?.get()?;
        Some(us_by_256 / 256)
    }

    /// Returns the number of prefill tokens that a step of `n_decode` decode rows can take. The step becomes
    /// at most `max_stall_percent` longer than one that decodes all of `n_sequences`: those rows, and the
    /// sequences in prefill or sitting out the step. So, up to that factor, streams wait no longer for
    /// prompts than for each other once the prompts are done; and many prompts do not wait long for a few
    /// streams.
    pub(crate) fn grant_prefill(
        &mut self,
        n_decode: usize,
        n_sequences: usize,
        max_stall_percent: u32,
    ) -> usize {
        let decoding = if n_decode == 0 {
            Some(0)
        } else {
            self.decode_us_by_256(n_decode)
        };
        let measured = decoding
            .zip(self.decode_us_by_256(n_sequences))
            .zip(self.prefill_token.get());
        let grant = match measured {
            Some(((decoding, all), prefill_token)) => {
                let longest = all.max(decoding) * (100 + u64::from(max_stall_percent)) / 100;
                ((longest - decoding) / prefill_token.max(1)).min(2 * self.granted as u64) as usize
            }
            None => FIRST_GRANT,
        };
        self.granted = grant.max(1);
        self.granted
    }

    /// Returns the duration of a step that decodes `n` rows, interpolated between the nearest measured
    /// numbers. Beyond the largest, a row is assumed to cost as much as a prefill token, because it passes
    /// through the same weights.
    fn decode_us_by_256(&self, n: usize) -> Option<u64> {
        let (us, n_more) = self.measured_us_by_256(n)?;
        Some(us + n_more as u64 * self.prefill_token.get().unwrap_or(0))
    }

    /// Returns the duration of a step that decodes `n` rows, or the largest measured number below, and the
    /// number of remaining rows.
    fn measured_us_by_256(&self, n: usize) -> Option<(u64, usize)> {
        let at = |rows: usize| self.decode.get(rows).and_then(|average| average.get());
        let below = (1..=n.min(self.decode.len()))
            .rev()
            .find_map(|rows| Some((rows, at(rows)?)));
        let above = (n..self.decode.len()).find_map(|rows| Some((rows, at(rows)?)));
        match (below, above) {
            (Some((low, low_us)), Some((high, high_us))) if high > low => {
                let (low_us, high_us) = (low_us as i64, high_us as i64);
                let us = low_us + (high_us - low_us) * (n - low) as i64 / (high - low) as i64;
                Some((us as u64, 0))
            }
            (Some((low, us)), _) => Some((us, n - low)),
            (None, Some((_, us))) => Some((us, 0)),
            (None, None) => None,
        }
    }

    /// Returns the throughput of decoding `n_sequences` in one batch: measured, or interpolated between the
    /// nearest measured numbers. Beyond the largest it stays at that one's rate, since more rows do not slow
    /// a token down.
    pub fn throughput(&self, n_sequences: usize) -> Option<Throughput> {
        let rate = |n: usize| {
            let largest = (1..self.decode.len())
                .rev()
                .find(|&rows| self.decode[rows].n_seen > 0)?;
            let n = n.clamp(1, largest);
            Some(n as f64 * 1e6 * 256.0 / self.decode_us_by_256(n)?.max(1) as f64)
        };
        let tokens_per_s = rate(n_sequences)?;
        let single = self
            .decode
            .get(1)
            .filter(|single| single.n_seen > 0)
            .and_then(|_| rate(1));
        Some(Throughput {
            n_sequences,
            tokens_per_s,
            over_single: single.map(|single| tokens_per_s / single),
        })
    }
}

/// Adds the duration of a step to the average for its number of rows. Stale averages are reset.
fn add_step(averages: &mut Vec<Average>, n_rows: usize, us: u64, n_steps: &mut u32) {
    *n_steps = n_steps.wrapping_add(1);
    if averages.len() <= n_rows {
        averages.resize(n_rows + 1, Average::default());
    }
    let average = &mut averages[n_rows];
    if n_steps.wrapping_sub(average.seen_at) >= MAX_AGE {
        average.n_seen = 0;
    }
    average.add_limited(us * 256);
    average.seen_at = *n_steps;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_unknown_before_a_step_was_measured() {
        assert_eq!(StepTimes::default().throughput(4), None);
    }

    #[test]
    fn throughput_interpolates_between_what_was_measured() {
        let mut times = StepTimes::default();
        times.observe(1, 0, 1000);
        times.observe(5, 0, 2000);
        let single = times.throughput(1).unwrap();
        assert_eq!((single.tokens_per_s, single.over_single), (1000.0, Some(1.0)));
        // Three rows take 1500 microseconds.
        assert_eq!(times.throughput(3).unwrap().tokens_per_s, 2000.0);
        assert_eq!(times.throughput(5).unwrap().over_single, Some(2.5));
        assert_eq!(times.throughput(9).unwrap().tokens_per_s, 2500.0);
    }

    #[test]
    fn one_slow_step_moves_an_average_little_and_many_move_it() {
        let mut times = StepTimes::default();
        for _ in 0..8 {
            times.observe(1, 0, 1000);
        }
        times.observe(1, 0, 100_000);
        assert_eq!(times.throughput(1).unwrap().tokens_per_s.round(), 889.0);
        for _ in 0..64 {
            times.observe(1, 0, 4000);
        }
        assert!((249.0..251.0).contains(&times.throughput(1).unwrap().tokens_per_s));
    }

    #[test]
    fn averages_neither_sink_to_nothing_nor_stay_there() {
        let mut times = StepTimes::default();
        for _ in 0..20 {
            times.observe(1, 0, 1000);
        }
        // A chunk of 100 tokens that half of the time adds nothing to the decoding, otherwise 10 us a token.
        for i in 0..1000 {
            times.observe(1, 100, 1000 + 2000 * (i % 2));
        }
        let us = times.prefill_token.get().unwrap() / 256;
        assert!((8..=12).contains(&us), "{us} us a token");

        let mut average = Average::default();
        for _ in 0..100 {
            average.add_limited(0);
        }
        for _ in 0..200 {
            average.add_limited(256_000);
        }
        assert!(average.get().unwrap() > 250_000, "{average:?}");
    }

    #[test]
    fn times_with_drafts_come_from_the_steps_that_had_some() {
        let mut times = StepTimes::default();
        times.observe_drafts(4, 1500);
        assert_eq!(times.draft_times(1), None, "a step without was not measured");
        times.observe(1, 0, 1000);
        let DraftTimes(with) = times.draft_times(1).unwrap();
        // Three draft tokens take half a step, a third of that each, and further ones the same.
        assert_eq!([with[0], with[1], with[3], with[6]], [256, 298, 384, 511]);
        // An unmeasured number is not free.
        times.observe_drafts(4, 1000);
        for _ in 0..64 {
            times.observe_drafts(4, 1000);
        }
        let DraftTimes(with) = times.draft_times(1).unwrap();
        assert!(with[3] < 260 && with[4] >= with[3] + 15, "{with:?}");
    }

    #[test]
    fn a_time_without_drafts_is_measured_again_now_and_then() {
        let mut times = StepTimes::default();
        times.observe(1, 0, 1000);
        for n_seen in 1.. {
            times.observe_drafts(3, 1100);
            if times.draft_times(1).is_none() {
                assert_eq!(n_seen, MAX_AGE);
                break;
            }
        }
        times.observe(1, 0, 3000);
        let DraftTimes(with) = times.draft_times(1).unwrap();
        assert_eq!(with[2], 256, "the old time has no part in the new one");
    }

    /// Returns the grant once it no longer grows: it at most doubles from step to step.
    fn settled(times: &mut StepTimes, n_decode: usize, n_sequences: usize, max_stall_percent: u32) -> usize {
        for _ in 0..8 {
            times.grant_prefill(n_decode, n_sequences, max_stall_percent);
        }
        times.grant_prefill(n_decode, n_sequences, max_stall_percent)
    }

    #[test]
    fn the_grant_fills_the_allowed_stall() {
        let mut times = StepTimes::default();
        assert_eq!(times.grant_prefill(2, 3, 100), FIRST_GRANT);
        times.observe(2, 0, 1000);
        times.observe(2, 32, 1000 + 32 * 50);
        // At most two rows were measured: the others count as prefill tokens.
        assert_eq!(times.grant_prefill(2, 2, 100), 20);
        assert_eq!(times.grant_prefill(2, 3, 100), 22);
        assert_eq!(times.grant_prefill(2, 2, 50), 10);
        assert_eq!(times.grant_prefill(2, 2, 100), 20);
    }

    /// If each step has a prompt, a step without one is never seen while a batch fills.
    #[test]
    fn rows_that_were_never_seen_alone_do_not_make_prompts_dear() {
        let mut times = StepTimes::default();
        times.observe(1, 0, 10_000);
        times.observe(1, 32, 10_000 + 32 * 100);
        // 15 more rows, each of which takes as long as a prefill token.
        for _ in 0..100 {
            times.observe(16, 1, 10_000 + 16 * 100);
        }
        assert_eq!(times.prefill_token.get().unwrap() / 256, 100);
        assert_eq!(times.decode_us_by_256(16).unwrap() / 256, 11_500);
        // Such a step may take 17,250 us.
        assert_eq!(settled(&mut times, 16, 16, 50), 57);
    }

    #[test]
    fn many_prompts_beside_few_streams_get_the_time_of_a_step_that_decodes_all() {
        let mut times = StepTimes::default();
        times.grant_prefill(2, 3, 100);
        times.observe(2, 0, 1000);
        times.observe(10, 0, 1800);
        times.observe(2, 32, 1000 + 32 * 50);
        // Decoding this many takes 1000, 1100, 1300 and 1800 microseconds; beyond that, 1800 plus 50 for each
        // further row.
        for (n_sequences, grant) in [(2, 20), (3, 24), (5, 32), (10, 52), (20, 72)] {
            assert_eq!(
                settled(&mut times, 2, n_sequences, 100),
                grant,
                "{n_sequences} sequences"
            );
        }
        assert_eq!(settled(&mut times, 2, 10, 0), 16);
        assert_eq!(settled(&mut times, 10, 10, 0), 1, "prompts never stand still");
        // A step without the streams, whose masks are not ready, has the same limit.
        assert_eq!(settled(&mut times, 0, 10, 100), 72);
    }
}

//! [`Report`]: throughput, percentiles and goodput from the measured requests.

use std::{fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use super::client::Measured;

/// The limits within which a request counts as good.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) ttft_ms: Option<f64>,
    pub(super) inter_token_ms: Option<f64>,
}

impl Bounds {
    fn is_given(self) -> bool {
        self.ttft_ms.or(self.inter_token_ms).is_some()
    }
}

/// The figures of a load.
#[derive(Debug)]
pub(super) struct Report {
    wall_s: f64,
    n_requests: usize,
    n_answered: usize,
    /// Answers within the bounds; `None` where no bound is given.
    n_within: Option<usize>,
    first_error: Option<String>,
    prompt_tokens: u64,
    completion_tokens: u64,
    pub(super) first_ms: Distribution,
    pub(super) inter_token_ms: Distribution,
    pub(super) total_ms: Distribution,
}

/// Sorted measurements.
#[derive(Debug, Default)]
pub(super) struct Distribution(Vec<f64>);

impl Distribution {
    pub(super) fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    pub(super) fn sorted(&self) -> &[f64] {
        &self.0
    }

    /// The smallest measurement that `percent` % of all do not exceed; 0 without measurements.
    pub(super) fn percentile(&self, percent: f64) -> f64 {
        let rank = (percent / 100.0 * self.0.len() as f64).ceil().max(1.0) as usize;
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    fn to_json(&self) -> Value {
        json!({
            "mean": self.mean(),
            "p50": self.percentile(50.0),
            "p90": self.percentile(90.0),
            "p99": self.percentile(99.0),
            "max": self.percentile(100.0),
        })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The times between the pieces of an answer, in milliseconds.
pub(super) fn gaps(one: &Measured) -> Vec<f64> {
    times_between(&one.pieces)
}

/// The times between neighbours, in milliseconds.
pub(super) fn times_between(times: &[Duration]) -> Vec<f64> {
    let pairs = times.windows(2);
    pairs.map(|pair| ms(pair[1].saturating_sub(pair[0]))).collect()
}

impl Report {
    pub(super) fn new(measured: &[Measured], wall: Duration, bounds: Bounds) -> Self {
        let answered: Vec<&Measured> = measured.iter().filter(|one| one.error.is_none()).collect();
        let is_within = |one: &&&Measured| {
            let first = one.first.map_or(f64::INFINITY, ms);
            // From the first text to the last, so that a server which sends several tokens at once gains nothing.
            let span = one.pieces.last().map_or(0.0, |last| ms(*last)) - first;
            let per_token = span / one.completion_tokens.saturating_sub(1).max(1) as f64;
            bounds.ttft_ms.is_none_or(|bound| first <= bound)
                && bounds.inter_token_ms.is_none_or(|bound| per_token <= bound)
        };
        Self {
            wall_s: wall.as_secs_f64(),
            n_requests: measured.len(),
            n_answered: answered.len(),
            n_within: bounds
                .is_given()
                .then(|| answered.iter().filter(is_within).count()),
            first_error: measured.iter().find_map(|one| one.error.clone()),
            prompt_tokens: answered.iter().map(|one| one.prompt_tokens).sum(),
            completion_tokens: answered.iter().map(|one| one.completion_tokens).sum(),
            first_ms: Distribution::new(answered.iter().filter_map(|one| one.first.map(ms)).collect()),
            inter_token_ms: Distribution::new(answered.iter().flat_map(|one| gaps(one)).collect()),
            total_ms: Distribution::new(answered.iter().map(|one| ms(one.total)).collect()),
        }
    }

    pub(super) fn n_good_answers(&self) -> usize {
        self.n_answered
    }

    fn per_second(&self, n: f64) -> f64 {
        if self.wall_s > 0.0 { n / self.wall_s } else { 0.0 }
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let within = self.n_within.map_or_else(String::new, |n_within| {
            format!(", {:.2} within the bounds", self.per_second(n_within as f64))
        });
        let mut table = format!(
            "{} of {} requests answered in {:.2} s: {:.2} requests/s{within}\n\
             {} prompt tokens, {} answer tokens: {:.1} tokens/s in answers\n\n\
             | ms | mean | p50 | p90 | p99 | max |\n|---|---|---|---|---|---|\n",
            self.n_answered,
            self.n_requests,
            self.wall_s,
            self.per_second(self.n_answered as f64),
            self.prompt_tokens,
            self.completion_tokens,
            self.per_second(self.completion_tokens as f64),
        );
        for (name, of) in [
            ("first token", &self.first_ms),
            ("inter-token", &self.inter_token_ms),
            ("end to end", &self.total_ms),
        ] {
            let _ = writeln!(
                table,
                "| {name} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
                of.mean(),
                of.percentile(50.0),
                of.percentile(90.0),
                of.percentile(99.0),
                of.percentile(100.0)
            );
        }
        if let Some(error) = &self.first_error {
            let _ = writeln!(table, "\nfirst failure: {error}");
        }
        table
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "wall_s": self.wall_s,
            "requests": self.n_requests,
            "answered": self.n_answered,
            "within_bounds": self.n_within,
            "goodput_per_s": self.n_within.map(|n_within| self.per_second(n_within as f64)),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "completion_tokens_per_s": self.per_second(self.completion_tokens as f64),
            "first_token_ms": self.first_ms.to_json(),
            "inter_token_ms": self.inter_token_ms.to_json(),
            "end_to_end_ms": self.total_ms.to_json(),
            "first_failure": self.first_error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measurements() {
        let of = Distribution::new(vec![4.0, 1.0, 3.0, 2.0]);
        let found = [1.0, 25.0, 50.0, 51.0, 99.0, 100.0].map(|percent| of.percentile(percent));
        assert_eq!(found, [1.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
        assert_eq!(Distribution::default().percentile(50.0), 0.0);
    }

    #[test]
    fn goodput_counts_requests_within_both_bounds() {
        let request = |first: u64, last: u64, error: Option<&str>| Measured {
            first: Some(Duration::from_millis(first)),
            pieces: vec![Duration::from_millis(first), Duration::from_millis(last)],
            completion_tokens: 11,
            error: error.map(str::to_owned),
            ..Measured::default()
        };
        let measured = [
            request(10, 110, None),
            request(60, 110, None),
            request(10, 310, None),
            request(10, 20, Some("cut")),
        ];
        let bounds = Bounds {
            ttft_ms: Some(50.0),
            inter_token_ms: Some(10.0),
        };
        let report = Report::new(&measured, Duration::from_secs(2), bounds).to_json();
        assert_eq!(
            (&report["answered"], &report["within_bounds"]),
            (&json!(3), &json!(1))
        );
        assert_eq!(report["goodput_per_s"], 0.5);
        assert_eq!(report["inter_token_ms"]["p50"], 100.0);
    }
}

//! [`MaskFigures`]: the metrics of the masks of constrained samples.
//!
//! The engine counts these in a histogram of its own, which is read whole at each scrape. Invariant: nothing
//! is counted here.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokenmill_sched::MaskTimes;

/// The figures; clones are handles to the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct MaskFigures {
    times: MaskHistogram,
    longest: Gauge<f64, AtomicU64>,
    waited: Counter<f64, AtomicU64>,
    missed: Counter,
    longest_missed: Gauge<i64>,
}

/// The times as the engine has counted them.
#[derive(Clone, Debug, Default)]
struct MaskHistogram(Arc<Mutex<MaskTimes>>);

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

impl MaskFigures {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "tokenmill_mask_seconds",
            "Time that a mask of a constrained sample took",
            self.times.clone(),
        );
        registry.register(
            "tokenmill_mask_longest_seconds",
            "The longest time that a mask took since the start",
            self.longest.clone(),
        );
        registry.register(
            "tokenmill_mask_wait_seconds",
            "Time that steps waited for masks at their end",
            self.waited.clone(),
        );
        registry.register(
            "tokenmill_mask_missed_rows",
            "Rows left out of steps because their mask was not ready",
            self.missed.clone(),
        );
        registry.register(
            "tokenmill_mask_longest_missed_steps",
            "The most consecutive steps that left out a row because its mask was not ready",
            self.longest_missed.clone(),
        );
    }

    pub(crate) fn set(&self, times: MaskTimes) {
        *self.times.0.lock().unwrap_or_else(PoisonError::into_inner) = times;
        self.longest.set(seconds(times.longest_us));
        let waited = seconds(times.waited_us).to_bits();
        self.waited.inner().store(waited, Ordering::Relaxed);
        self.missed.inner().store(times.n_missed, Ordering::Relaxed);
        let longest_missed = i64::try_from(times.longest_missed).unwrap_or(i64::MAX);
        self.longest_missed.set(longest_missed);
    }
}

impl EncodeMetric for MaskHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let times = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bounds = MaskTimes::BOUNDS_US
            .map(seconds)
            .into_iter()
            .chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(times.counts).collect();
        let n_masks = times.counts.iter().sum();
        encoder.encode_histogram::<NoLabelSet>(seconds(times.total_us), n_masks, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn buckets_count_what_is_below_them() {
        let mut registry = Registry::default();
        let figures = MaskFigures::default();
        figures.register(&mut registry);
        let mut times = MaskTimes {
            total_us: 1_500_000,
            longest_us: 900_000,
            waited_us: 250_000,
            n_missed: 3,
            longest_missed: 2,
            ..MaskTimes::default()
        };
        (times.counts[0], times.counts[2], times.counts[12]) = (4, 2, 1);
        figures.set(times);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "tokenmill_mask_seconds_sum 1.5",
            "tokenmill_mask_seconds_count 7",
            "tokenmill_mask_seconds_bucket{le=\"0.00005\"} 4",
            "tokenmill_mask_seconds_bucket{le=\"0.00025\"} 6",
            "tokenmill_mask_seconds_bucket{le=\"+Inf\"} 7",
            "tokenmill_mask_longest_seconds 0.9",
            "tokenmill_mask_wait_seconds_total 0.25",
            "tokenmill_mask_missed_rows_total 3",
            "tokenmill_mask_longest_missed_steps 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}

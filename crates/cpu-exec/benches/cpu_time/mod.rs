//! [`CpuTime`]: a criterion clock that stops while the thread does not run.
//!
//! Kernels are measured with one thread and its processor time, so that figures are comparable even if the machine
//! also does other things.

use std::time::{Duration, Instant};

use criterion::{
    Throughput,
    measurement::{Measurement, ValueFormatter, WallTime},
};

/// The processor time of the calling thread if the system reports it, otherwise wall time.
pub(crate) struct CpuTime;

fn now() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|stat| stat.split_whitespace().next()?.parse().ok())
        .map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        now()
    }

    fn end(&self, start: Duration) -> Duration {
        now().saturating_sub(start)
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &Format
    }
}

/// Criterion's own formats, which are public only through [`WallTime`].
struct Format;

impl ValueFormatter for Format {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_values(typical, values)
    }

    fn scale_throughputs(&self, typical: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        WallTime
            .formatter()
            .scale_throughputs(typical, throughput, values)
    }

    fn scale_for_machines(&self, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_for_machines(values)
    }
}

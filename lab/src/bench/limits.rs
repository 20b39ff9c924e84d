//! [`Meter`]: measures the limits of the machine: reading memory, and multiplying 8-bit integers.
//!
//! A machine that is shared with others changes from minute to minute, so limits are sampled next to the work that is
//! compared with them. Invariant: one sample takes some tens of milliseconds.

use std::{hint::black_box, time::Instant};

use serde::{Deserialize, Serialize};
use tokenmill_cpu_exec::{Host, ReadBuffer, multiply_bytes};
use tokenmill_quant::CpuFeatures;

/// Several times the last-level cache of most machines.
const BUFFER_BYTES: usize = 512 << 20;
/// Rounds of multiplications, some tens of milliseconds of them.
const MULTIPLY_ROUNDS: usize = 10_000_000;

/// Rates of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Limits {
    /// Bytes read per second by all threads.
    pub(super) read_bytes_s: f64,
    /// Products of 8-bit integers per second, summed, by all threads.
    pub(super) multiplies_s: f64,
}

impl Limits {
    /// Returns the rates half way between two samples.
    pub(super) fn midpoint(a: Self, b: Self) -> Self {
        Self {
            read_bytes_s: f64::midpoint(a.read_bytes_s, b.read_bytes_s),
            multiplies_s: f64::midpoint(a.multiplies_s, b.multiplies_s),
        }
    }
}

/// Threads and memory to sample the limits with.
pub(super) struct Meter {
    host: Host,
    buffer: ReadBuffer,
}

impl Meter {
    /// Starts the threads and allocates the memory.
    ///
    /// # Errors
    /// There is no memory, or threads cannot be started.
    pub(super) fn new(n_threads: usize) -> anyhow::Result<Self> {
        let host = Host::new(n_threads, CpuFeatures::detect())?;
        let buffer = ReadBuffer::new(&host, BUFFER_BYTES)?;
        Ok(Self { host, buffer })
    }

    /// Measures the present limits of the machine.
    pub(super) fn sample(&self) -> Limits {
        Limits {
            read_bytes_s: rate(|| {
                self.buffer.read(&self.host);
                BUFFER_BYTES
            }),
            multiplies_s: rate(|| multiply_bytes(&self.host, MULTIPLY_ROUNDS)),
        }
    }
}

/// Returns the units per second; `work` returns its units.
fn rate(work: impl FnOnce() -> usize) -> f64 {
    let started = Instant::now();
    let n_units = black_box(work());
    n_units as f64 / started.elapsed().as_secs_f64()
}

//! [`Limits`]: what the machine can do at most, measured: reading memory, and multiplying 8-bit integers.
//!
//! Measured before the cells, for a figure says little without its limit and no two machines are alike, not even the
//! same one on two days. Invariant: a limit is the best of several runs, since nothing makes a machine faster than it is.

use std::{hint::black_box, time::Instant};

use serde::{Deserialize, Serialize};
use tokenmill_cpu_exec::{Host, ReadBuffer, multiply_bytes};
use tokenmill_quant::CpuFeatures;

/// Several times the last-level cache of most machines.
const BUFFER_BYTES: usize = 512 << 20;
/// Rounds of multiplications, some tens of milliseconds of them.
const MULTIPLY_ROUNDS: usize = 10_000_000;
const REPETITIONS: usize = 7;

/// Rates of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Limits {
    /// The instruction sets that were used.
    pub(super) instruction_sets: String,
    pub(super) n_threads: usize,
    /// Bytes read per second by all threads.
    pub(super) read_bytes_s: f64,
    /// The same, by one thread.
    pub(super) read_bytes_s_one_thread: f64,
    /// Products of 8-bit integers per second, summed, by all threads.
    pub(super) multiplies_s: f64,
    /// The same, by one thread.
    pub(super) multiplies_s_one_thread: f64,
}

impl Limits {
    /// Measures them, which takes a few seconds.
    ///
    /// # Errors
    /// There is no memory, or threads cannot be started.
    pub(super) fn measure(n_threads: usize) -> anyhow::Result<Self> {
        let features = CpuFeatures::detect();
        let all = Host::new(n_threads, features)?;
        let one = Host::new(1, features)?;
        let buffer = ReadBuffer::new(&all, BUFFER_BYTES)?;
        let read = |host: &Host| {
            best_rate(|| {
                buffer.read(host);
                BUFFER_BYTES
            })
        };
        let multiply = |host: &Host| best_rate(|| multiply_bytes(host, MULTIPLY_ROUNDS));
        Ok(Self {
            instruction_sets: features.to_string(),
            n_threads,
            read_bytes_s: read(&all),
            read_bytes_s_one_thread: read(&one),
            multiplies_s: multiply(&all),
            multiplies_s_one_thread: multiply(&one),
        })
    }
}

/// Units per second of the fastest run; `work` gives its units.
fn best_rate(mut work: impl FnMut() -> usize) -> f64 {
    (0..REPETITIONS)
        .map(|_| {
            let started = Instant::now();
            let n_units = black_box(work());
            n_units as f64 / started.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max)
}

//! [`ReadSpeed`]: the speed at which the threads of a pool read main memory.
//!
//! No model needs its results. Invariant: the memory is written before it is read, so no page of it is the
//! system's page of zeros, and it is larger than caches if there is room.

use std::{hint::black_box, time::Instant};

use crate::{CpuExecError, Pool, zeroed::zeroed};

/// The speed at which threads read main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSpeed {
    /// The speed in bytes per second.
    pub bytes_per_s: u64,
    /// The number of bytes read.
    pub n_bytes: usize,
}

impl ReadSpeed {
    /// Returns whether the memory is so large that the result is about main memory rather than caches: 256
    /// MiB or more.
    pub fn is_of_main_memory(&self) -> bool {
        const LEAST_BYTES: usize = 256 << 20;
        self.n_bytes >= LEAST_BYTES
    }
}

/// The number of bytes to read, if there is room: more than twice the caches of most servers.
const READ_BYTES: usize = 1 << 30;
/// The number of words in a chunk of 256 KiB.
const CHUNK_WORDS: usize = 32 << 10;
/// The number of passes; the fastest counts.
const N_RUNS: usize = 3;

/// Measures the speed at which the pool's active threads read at most `max_bytes`.
///
/// # Errors
/// [`CpuExecError::OutOfMemory`].
pub(crate) fn read_speed(pool: &Pool, max_bytes: usize) -> Result<ReadSpeed, CpuExecError> {
    let n_words = (READ_BYTES.min(max_bytes) / size_of::<u64>()).max(CHUNK_WORDS);
    let mut words: Vec<u64> = zeroed(n_words, "measuring how fast memory is read")?;
    let _entered = pool.enter();
    // The threads that read a chunk have usually written it, so its pages are near them.
    pool.for_each_chunk(&mut words, CHUNK_WORDS, |_, chunk| chunk.fill(1));
    let mut shortest = f64::INFINITY;
    for _ in 0..N_RUNS {
        let start = Instant::now();
        pool.for_each_chunk(&mut words, CHUNK_WORDS, |_, chunk| {
            black_box(chunk.iter().fold(0u64, |sum, &word| sum.wrapping_add(word)));
        });
        shortest = shortest.min(start.elapsed().as_secs_f64());
    }
    let n_bytes = n_words * size_of::<u64>();
    Ok(ReadSpeed {
        bytes_per_s: (n_bytes as f64 / shortest.max(1e-9)) as u64,
        n_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_measured_of_little_memory_too() {
        let pool = Pool::new(2).unwrap();
        for max_bytes in [0, 8 << 20] {
            let speed = read_speed(&pool, max_bytes).unwrap();
            let bytes_per_s = speed.bytes_per_s;
            assert!(speed.n_bytes >= max_bytes && !speed.is_of_main_memory());
            // No machine reads less than a megabyte or more than a petabyte per second.
            assert!((1 << 20..1 << 50).contains(&bytes_per_s), "{bytes_per_s}");
        }
    }
}

//! [`ReadSpeed`]: how fast the threads of a pool read main memory.
//!
//! Separate because it computes nothing that a model needs. Invariant: what is read was written before, so no page of it is the system's
//! page of zeros, and where there is room it is larger than caches are.

use std::{hint::black_box, time::Instant};

use crate::{CpuExecError, Pool, zeroed::zeroed};

/// How fast threads read main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSpeed {
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// Bytes that were read.
    pub n_bytes: usize,
}

impl ReadSpeed {
    /// Whether so much was read that it says more of main memory than of caches: 256 MiB or more.
    pub fn is_of_main_memory(&self) -> bool {
        const LEAST_BYTES: usize = 256 << 20;
        self.n_bytes >= LEAST_BYTES
    }
}

/// Bytes that are read, where there is room: more than twice what the caches of most servers have.
const READ_BYTES: usize = 1 << 30;
/// Words of a chunk, 256 KiB.
const CHUNK_WORDS: usize = 32 << 10;
/// Times that all is read; the fastest counts.
const N_RUNS: usize = 3;

/// How fast the threads of a pool, as many as take part, read of at most `max_bytes`.
///
/// # Errors
/// [`CpuExecError::OutOfMemory`].
pub(crate) fn read_speed(pool: &Pool, max_bytes: usize) -> Result<ReadSpeed, CpuExecError> {
    let n_words = (READ_BYTES.min(max_bytes) / size_of::<u64>()).max(CHUNK_WORDS);
    let mut words: Vec<u64> = zeroed(n_words, "measuring how fast memory is read")?;
    let _entered = pool.enter();
    // The threads that read a chunk have written it, so that its pages are near them.
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
            // A megabyte a second is less, and a petabyte more, than any machine has.
            assert!((1 << 20..1 << 50).contains(&bytes_per_s), "{bytes_per_s}");
        }
    }
}

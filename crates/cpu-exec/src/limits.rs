//! Work whose rate is a limit of the machine: [`ReadBuffer`] for memory, [`multiply_bytes`] for arithmetic.
//!
//! Benchmarks run these together with a model, since a speed means little without its limit. They run on the same
//! threads, pages and instruction sets as the products. Invariant: nothing here looks at a clock.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    CpuExecError, Host,
    simd::{TileMemory, limits},
};

/// Bytes that a thread reads before it claims more, as long as a product's share of a matrix.
const CHUNK_BYTES: usize = 1 << 20;

/// Memory to read, on the pages that weights are on.
#[derive(Debug)]
pub struct ReadBuffer {
    memory: TileMemory,
}

impl ReadBuffer {
    /// Allocates `n_bytes` and writes each page, so that it is there. Take several times the last-level cache.
    ///
    /// # Errors
    /// [`CpuExecError::OutOfMemory`] where the system has no such memory.
    pub fn new(host: &Host, n_bytes: usize) -> Result<Self, CpuExecError> {
        let mut memory = TileMemory::zeroed(n_bytes)?;
        host.pool()
            .for_each_chunk(memory.as_mut_slice(), CHUNK_BYTES, |_, chunk| chunk.fill(1));
        Ok(Self { memory })
    }

    /// Reads every byte once, all threads sharing the work.
    pub fn read(&self, host: &Host) {
        let bytes = self.memory.as_slice();
        host.pool()
            .run(bytes.len().div_ceil(CHUNK_BYTES), |_, chunk_idx| {
                let start = chunk_idx * CHUNK_BYTES;
                let bytes = &bytes[start..bytes.len().min(start + CHUNK_BYTES)];
                limits::read_bytes(host.features(), bytes);
            });
    }
}

/// Multiplies bytes in the registers of every thread and sums the products, `n_rounds` rounds each; gives the number of
/// multiplications. They are those of the instruction that products are made of: 8 bits times 8 bits into 32.
pub fn multiply_bytes(host: &Host, n_rounds: usize) -> usize {
    let n_multiplies = AtomicUsize::new(0);
    host.pool().run(host.pool().n_threads(), |_, _| {
        let n = limits::multiply_bytes(host.features(), n_rounds);
        n_multiplies.fetch_add(n, Ordering::Relaxed);
    });
    n_multiplies.into_inner()
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;

    #[test]
    fn work_does_not_depend_on_the_instruction_set() {
        for features in CpuFeatures::each_path() {
            let host = Host::new(2, features).unwrap();
            for n_bytes in [0, 100, CHUNK_BYTES + 7] {
                ReadBuffer::new(&host, n_bytes).unwrap().read(&host);
            }
            let n_multiplies = multiply_bytes(&host, 10);
            assert!(n_multiplies >= 2 * 10 * 16 * 8 * 4 && n_multiplies.is_multiple_of(20));
        }
    }
}

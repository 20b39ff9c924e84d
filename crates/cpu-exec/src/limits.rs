//! Work whose speed is a limit of the machine: [`ReadBuffer`] for memory, [`multiply_bytes`] for arithmetic.
//!
//! Benchmarks run it together with a model, since a speed means little without its limit. It runs on the same
//! threads, pages and instruction sets as the products. Invariant: nothing here reads a clock.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokenmill_cpu_kernels::{TileMemory, TileOps};
use tokenmill_gguf::TensorType;

use crate::{CpuExecError, Host};

/// The number of bytes that a thread reads before it claims more: as many as a product's share of a matrix.
const CHUNK_BYTES: usize = 1 << 20;

/// Memory to read, on pages of the same kind as those of weights.
#[derive(Debug)]
pub struct ReadBuffer {
    memory: TileMemory,
}

impl ReadBuffer {
    /// Allocates `n_bytes` and writes each page, so that the system backs it. Use several times the
    /// last-level cache.
    ///
    /// # Errors
    /// [`CpuExecError::OutOfMemory`] if the system cannot provide the memory.
    pub fn new(host: &Host, n_bytes: usize) -> Result<Self, CpuExecError> {
        let mut memory = TileMemory::zeroed(n_bytes)?;
        host.pool()
            .for_each_chunk(memory.as_mut_slice(), CHUNK_BYTES, |_, chunk| chunk.fill(1));
        Ok(Self { memory })
    }

    /// Reads every byte once; all threads share the work.
    pub fn read(&self, host: &Host) {
        let bytes = self.memory.as_slice();
        host.pool()
            .run(bytes.len().div_ceil(CHUNK_BYTES), |_, chunk_idx| {
                let start = chunk_idx * CHUNK_BYTES;
                let bytes = &bytes[start..bytes.len().min(start + CHUNK_BYTES)];
                tokenmill_cpu_kernels::read_bytes(host.features(), bytes);
            });
    }
}

/// Multiplies bytes in the registers of every thread and sums the products, `n_rounds` rounds each; returns
/// the number of multiplications. It uses the instruction of the matrix products: 8 bits times 8 bits into
/// 32.
pub fn multiply_bytes(host: &Host, n_rounds: usize) -> usize {
    let n_multiplies = AtomicUsize::new(0);
    host.pool().run(host.pool().n_threads(), |_, _| {
        let n = tokenmill_cpu_kernels::multiply_bytes(host.features(), n_rounds);
        n_multiplies.fetch_add(n, Ordering::Relaxed);
    });
    n_multiplies.into_inner()
}

/// Returns the number of vector instructions that the product of 16 rows of weights of a type with 256
/// columns of a row of activations takes on two vector ports, for many rows; 64 of them multiply. `None` for
/// types with products of floats.
///
/// A product of quantized blocks is more than multiplications: integer sums are converted to floats and
/// multiplied by their scales. The inner loop (`panel.rs` of `tokenmill-cpu-kernels`) adds to the 64:
///
/// | formats | conversions | scales | biases | minima, offsets | end of a span | all | share |
/// |---|---:|---:|---:|---:|---:|---:|---:|
/// | `Q4_0`, `Q5_0`, `Q8_0`, IQ3 and IQ4 types, ternary ones | 8 | 16 | 4 | | | 92 | 70 % |
/// | `Q4_1`, `Q5_1` | 8 | 16 | | 8 | | 96 | 67 % |
/// | `Q4_K`, `Q5_K` | 8 | 8 | | 6 | 1 | 87 | 74 % |
/// | `Q3_K`, `Q6_K`, `NVFP4`, IQ1 and IQ2 types | 16 | 16 | 8 | | 1 | 105 | 61 % |
/// | `Q2_K` | 16 | 16 | | 10 | 1 | 107 | 60 % |
///
/// Biases are shifted once for two vectors of rows, so they count half. Loads and broadcasts from memory use
/// no vector port. All rows of a block share the unpacking, which is left out: a bound that ignores work is
/// still a bound. A processor that converts and shifts on other ports than it multiplies on can exceed it.
///
/// The compiled loops of `Q4_K` and `Q2_K` were inspected (`objdump -d`, six rows by two vectors). They have
/// these counts, with one exception: LLVM turns all but the first `vpdpwssd` of the minima into `vpmaddwd`
/// and `vpaddd`, 3 more additions in `Q4_K` (90), 7 in `Q2_K` (114). The compiler adds them, not the format,
/// so they do not count here.
pub fn product_instructions(ty: TensorType) -> Option<u32> {
    TileOps::of(ty)?.instructions
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;

    #[test]
    fn instructions_are_those_of_the_table() {
        let check = |ty, expected| assert_eq!(product_instructions(ty), expected, "{ty}");
        check(TensorType::F16, None);
        check(TensorType::Q8_0, Some(92));
        check(TensorType::IQ4_XS, Some(92));
        check(TensorType::Q5_1, Some(96));
        check(TensorType::Q4_K, Some(87));
        check(TensorType::Q6_K, Some(105));
        check(TensorType::Q2_K, Some(107));
    }

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

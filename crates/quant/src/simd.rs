//! Decoding with the best instruction set.
//!
//! It is the scalar code of the formats, compiled again for AVX2, where the vectorizer does well. Since no
//! float operation is reordered or fused, the bits equal those of scalar code. On 64-bit ARM the vectorizer
//! always has Advanced SIMD.

use crate::block::dequantize_blocks;
use crate::{Block, CpuFeatures};

/// Decodes whole blocks; the length of `out` matches exactly.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "there is a variant for x86-64 only")
)]
pub(crate) fn dequantize<B: Block>(features: CpuFeatures, blocks: &[B], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if !features.is_scalar() {
        // SAFETY: `CpuFeatures` holds only detected instruction sets, and each of them includes AVX2.
        return unsafe { dequantize_avx2(blocks, out) };
    }
    dequantize_blocks(blocks, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dequantize_avx2<B: Block>(blocks: &[B], out: &mut [f32]) {
    dequantize_blocks(blocks, out);
}

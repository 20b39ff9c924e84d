//! The choice of instruction set, and everything that is written for one.
//!
//! Functions here take [`CpuFeatures`] and are safe: that value never holds what the processor lacks. The dot kernels
//! are one source (`kernels`), compiled for each instruction set with its own way to multiply bytes. Decoding and
//! activation encoding are the scalar code of the formats compiled once more for AVX2, where the vectorizer does well.
//! Since no float operation is reordered or fused, the bits are those of scalar code.

use crate::activation::encode_blocks;
use crate::block::dequantize_blocks;
use crate::formats::{
    BlockBF16, BlockF16, BlockF32, BlockIQ4NL, BlockIQ4XS, BlockMXFP4, BlockQ2K, BlockQ3K, BlockQ4_0,
    BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, BlockQ8_1, BlockQ8K,
};
use crate::{ActivationBlock, Block, CpuFeatures};

#[cfg(target_arch = "x86_64")]
use crate::Isa;

#[cfg(target_arch = "x86_64")]
#[macro_use]
mod kernels;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512vnni;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
#[cfg(target_arch = "x86_64")]
mod load;

/// Writes the choice between the kernels of each instruction set; `None` where only scalar code may run.
macro_rules! dispatch {
    ($($name:ident($weights:ty, $activations:ty);)*) => {$(
        #[cfg_attr(
            not(target_arch = "x86_64"),
            expect(unused_variables, reason = "there are kernels for x86-64 only")
        )]
        pub(crate) fn $name(
            features: CpuFeatures,
            weights: &[$weights],
            activations: &[$activations],
        ) -> Option<f32> {
            #[cfg(target_arch = "x86_64")]
            {
                if features.has(Isa::Avx512Vnni) {
                    // SAFETY: `CpuFeatures` holds only what was detected, which covers all that the kernels enable.
                    return Some(unsafe { avx512vnni::$name(weights, activations) });
                }
                if features.has(Isa::AvxVnni) {
                    // SAFETY: as above.
                    return Some(unsafe { avxvnni::$name(weights, activations) });
                }
                if features.has(Isa::Avx2) {
                    // SAFETY: as above.
                    return Some(unsafe { avx2::$name(weights, activations) });
                }
            }
            None
        }
    )*};
}

dispatch! {
    dot_f32(BlockF32, BlockF32);
    dot_f16(BlockF16, BlockF32);
    dot_bf16(BlockBF16, BlockF32);
    dot_q4_0(BlockQ4_0, BlockQ8_0);
    dot_q4_1(BlockQ4_1, BlockQ8_1);
    dot_q5_0(BlockQ5_0, BlockQ8_0);
    dot_q5_1(BlockQ5_1, BlockQ8_1);
    dot_q8_0(BlockQ8_0, BlockQ8_0);
    dot_q2_k(BlockQ2K, BlockQ8K);
    dot_q3_k(BlockQ3K, BlockQ8K);
    dot_q4_k(BlockQ4K, BlockQ8K);
    dot_q5_k(BlockQ5K, BlockQ8K);
    dot_q6_k(BlockQ6K, BlockQ8K);
    dot_iq4_nl(BlockIQ4NL, BlockQ8_0);
    dot_iq4_xs(BlockIQ4XS, BlockQ8K);
    dot_mxfp4(BlockMXFP4, BlockQ8_0);
}

/// Decodes whole blocks; `out` has exactly their values.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "there are kernels for x86-64 only")
)]
pub(crate) fn dequantize<B: Block>(features: CpuFeatures, blocks: &[B], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if !features.is_scalar() {
        // SAFETY: `CpuFeatures` holds only what was detected, and each of its instruction sets includes AVX2.
        return unsafe { dequantize_avx2(blocks, out) };
    }
    dequantize_blocks(blocks, out);
}

/// Encodes whole blocks of activations; `values` has exactly their values.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "there are kernels for x86-64 only")
)]
pub(crate) fn encode<A: ActivationBlock>(features: CpuFeatures, values: &[f32], blocks: &mut [A]) {
    #[cfg(target_arch = "x86_64")]
    if !features.is_scalar() {
        // SAFETY: `CpuFeatures` holds only what was detected, and each of its instruction sets includes AVX2.
        return unsafe { encode_avx2(values, blocks) };
    }
    encode_blocks(values, blocks);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dequantize_avx2<B: Block>(blocks: &[B], out: &mut [f32]) {
    dequantize_blocks(blocks, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn encode_avx2<A: ActivationBlock>(values: &[f32], blocks: &mut [A]) {
    encode_blocks(values, blocks);
}

//! BF16: the upper half of a 32-bit float, against activations in 32 bits. A block is one value.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::BlockF32;
use crate::lanes::sum_products;
use crate::{Block, CpuFeatures, simd};

/// One bfloat16 number, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct BlockBF16([u8; 2]);

const _: () = assert!(size_of::<BlockBF16>() == 2 && align_of::<BlockBF16>() == 1);

impl BlockBF16 {
    /// The value, exactly.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        f32::from_bits((u16::from_le_bytes(self.0) as u32) << 16)
    }
}

impl Block for BlockBF16 {
    const TYPE: TensorType = TensorType::BF16;
    const LEN: usize = 1;
    type Activation = BlockF32;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.to_f32();
    }

    /// Rounds to nearest, ties to even.
    fn quantize(values: &[f32]) -> Self {
        Self(half::bf16::from_f32(values[0]).to_bits().to_le_bytes())
    }

    fn dot_scalar(weights: &[Self], activations: &[BlockF32]) -> f32 {
        sum_products(weights, activations, |w| w.to_f32(), |a| a.to_f32())
    }

    fn dot(features: CpuFeatures, weights: &[Self], activations: &[BlockF32]) -> f32 {
        simd::dot_bf16(features, weights, activations)
            .unwrap_or_else(|| Self::dot_scalar(weights, activations))
    }
}

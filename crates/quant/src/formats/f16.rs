//! F16: half-precision floats, against activations in 32 bits. A block is one value.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::BlockF32;
use crate::lanes::sum_products;
use crate::{Block, CpuFeatures, F16Bits, simd};

/// One IEEE 754 binary16 number, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct BlockF16(pub F16Bits);

const _: () = assert!(size_of::<BlockF16>() == 2 && align_of::<BlockF16>() == 1);

impl Block for BlockF16 {
    const TYPE: TensorType = TensorType::F16;
    const LEN: usize = 1;
    type Activation = BlockF32;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.0.to_f32();
    }

    fn quantize(values: &[f32]) -> Self {
        Self(F16Bits::from_f32(values[0]))
    }

    fn dot_scalar(weights: &[Self], activations: &[BlockF32]) -> f32 {
        sum_products(weights, activations, |w| w.0.to_f32(), |a| a.to_f32())
    }

    fn dot(features: CpuFeatures, weights: &[Self], activations: &[BlockF32]) -> f32 {
        simd::dot_f16(features, weights, activations)
            .unwrap_or_else(|| Self::dot_scalar(weights, activations))
    }
}

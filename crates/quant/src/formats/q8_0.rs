//! Q8_0: 32 signed bytes and one scale, 8.5 bits a value; for weights and for activations.
//!
//! A value is `scale * quant`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::integer_dot;
use crate::lanes::sum_blocks;
use crate::{ActivationBlock, ActivationFormat, Block, CpuFeatures, F16Bits, simd};

/// 32 values of 8 bits, 34 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// The scale.
    pub scale: F16Bits,
    /// The quants in row order.
    pub quants: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_0>() == 34 && align_of::<BlockQ8_0>() == 1);

/// Quantizes 32 values to -127..=127, each rounded to nearest and ties away from zero, and returns the scale before it
/// is rounded to half precision. Written without branches, for the vectorizer.
#[inline(always)]
pub(super) fn quantize_32(values: &[f32]) -> (f32, [i8; 32]) {
    // Without their signs, floats order like their bit patterns, and the greatest integer needs no order of operations.
    let magnitude = values.iter().fold(0, |max, x| max.max(x.to_bits() & 0x7fff_ffff));
    let scale = f32::from_bits(magnitude) / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut quants = [0; 32];
    for (quant, x) in quants.iter_mut().zip(values) {
        // The sum with 1.5 * 2^23 has the rounded value, in two's complement, in its low bits.
        *quant = ((x * inverse).round() + 12_582_912.0).to_bits() as i8;
    }
    (scale, quants)
}

impl Block for BlockQ8_0 {
    const TYPE: TensorType = TensorType::Q8_0;
    const LEN: usize = 32;
    type Activation = Self;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (out, &quant) in out.iter_mut().zip(&self.quants) {
            *out = f32::from(quant) * scale;
        }
    }

    fn quantize(values: &[f32]) -> Self {
        Self::encode(values)
    }

    fn dot_scalar(weights: &[Self], activations: &[Self]) -> f32 {
        sum_blocks(weights, activations, |w, a| {
            w.scale.to_f32() * a.scale.to_f32() * integer_dot(&w.quants, &a.quants) as f32
        })
    }

    fn dot(features: CpuFeatures, weights: &[Self], activations: &[Self]) -> f32 {
        simd::dot_q8_0(features, weights, activations)
            .unwrap_or_else(|| Self::dot_scalar(weights, activations))
    }
}

impl ActivationBlock for BlockQ8_0 {
    const FORMAT: ActivationFormat = ActivationFormat::Q8_0;
    const LEN: usize = 32;

    #[inline(always)]
    fn encode(values: &[f32]) -> Self {
        let (scale, quants) = quantize_32(values);
        Self {
            scale: F16Bits::from_f32(scale),
            quants,
        }
    }
}

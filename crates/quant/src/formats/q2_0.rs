//! Q2_0: 64 weights of 2 bits and one scale; 2.25 bits a weight.
//!
//! A weight is `scale * (quant - 1)`: ternary, or twice the scale, which encoders do not use.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::tq2_0::quantize_ternary;
use crate::{Block, BlockParts, F16Bits, QuantBlock};

/// 64 weights of 2 bits, 18 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2_0 {
    /// The scale.
    pub scale: F16Bits,
    /// Bits `2 * (i % 4)` and up of byte `i / 4` are quant `i`.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ2_0>() == 18 && align_of::<BlockQ2_0>() == 1);

impl BlockQ2_0 {
    /// Returns the quants in row order, in 0..=3.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; 64] {
        std::array::from_fn(|i| self.quants[i / 4] >> (2 * (i % 4)) & 3)
    }
}

impl Block for BlockQ2_0 {
    const TYPE: TensorType = TensorType::Q2_0;
    const LEN: usize = 64;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (out, quant) in out.iter_mut().zip(self.unpack()) {
            *out = scale * (f32::from(quant) - 1.0);
        }
    }

    fn quantize(values: &[f32]) -> Self {
        let (scale, quants) = quantize_ternary::<64>(values);
        let (fours, _) = quants.as_chunks::<4>();
        Self {
            scale: F16Bits::from_f32(scale),
            quants: std::array::from_fn(|i| {
                let [a, b, c, d] = fours[i].map(|quant| quant & 3);
                a | b << 2 | c << 4 | d << 6
            }),
        }
    }
}

impl QuantBlock for BlockQ2_0 {
    const QUANT_BITS: u32 = 2;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; 64];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; 64]> {
        BlockParts::new(self.unpack(), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

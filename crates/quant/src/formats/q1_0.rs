//! Q1_0: the signs of 128 weights and one scale; 1.125 bits a weight.
//!
//! A weight is `scale * (2 * quant - 1)`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use crate::{Block, BlockParts, F16Bits, QuantBlock};

/// 128 weights of 1 bit, 18 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ1_0 {
    /// The scale.
    pub scale: F16Bits,
    /// Bit `i % 8` of byte `i / 8` is quant `i`.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ1_0>() == 18 && align_of::<BlockQ1_0>() == 1);

impl BlockQ1_0 {
    /// Returns the quants in row order, 0 or 1.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; 128] {
        std::array::from_fn(|i| self.quants[i / 8] >> (i % 8) & 1)
    }
}

impl Block for BlockQ1_0 {
    const TYPE: TensorType = TensorType::Q1_0;
    const LEN: usize = 128;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (out, quant) in out.iter_mut().zip(self.unpack()) {
            *out = if quant == 1 { scale } else { -scale };
        }
    }

    /// Uses the mean of the magnitudes as the scale.
    fn quantize(values: &[f32]) -> Self {
        let sum = values.iter().fold(0.0, |sum, x| sum + x.abs());
        let (eights, _) = values.as_chunks::<8>();
        Self {
            scale: F16Bits::from_f32(sum / 128.0),
            quants: std::array::from_fn(|i| {
                (0..8).fold(0, |byte, j| byte | u8::from(eights[i][j] >= 0.0) << j)
            }),
        }
    }
}

impl QuantBlock for BlockQ1_0 {
    const QUANT_BITS: u32 = 1;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; 128];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; 128]> {
        BlockParts::new(self.unpack(), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

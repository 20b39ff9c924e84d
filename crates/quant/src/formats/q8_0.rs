//! Q8_0: 32 weights of 8 bits and one scale, 8.5 bits a weight.
//!
//! A weight is `scale * quant`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use crate::{Block, BlockParts, F16Bits, QuantBlock};

/// 32 weights of 8 bits, 34 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// The scale.
    pub scale: F16Bits,
    /// The quants in row order.
    pub quants: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_0>() == 34 && align_of::<BlockQ8_0>() == 1);

impl Block for BlockQ8_0 {
    const TYPE: TensorType = TensorType::Q8_0;
    const LEN: usize = 32;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (out, &quant) in out.iter_mut().zip(&self.quants) {
            *out = f32::from(quant) * scale;
        }
    }

    /// Rounds to nearest, ties away from zero; quants are in -127..=127.
    fn quantize(values: &[f32]) -> Self {
        // Without their signs, floats order like their bit patterns.
        let magnitude = values.iter().fold(0, |max, x| max.max(x.to_bits() & 0x7fff_ffff));
        let scale = f32::from_bits(magnitude) / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        // The sum with 1.5 * 2^23 has the rounded value, in two's complement, in its low bits.
        let quant = |x: f32| ((x * inverse).round() + 12_582_912.0).to_bits() as i8;
        Self {
            scale: F16Bits::from_f32(scale),
            quants: std::array::from_fn(|i| quant(values[i])),
        }
    }
}

impl QuantBlock for BlockQ8_0 {
    const QUANT_BITS: u32 = 8;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; 32];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; 32]> {
        BlockParts::new(bytemuck::cast(self.quants), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

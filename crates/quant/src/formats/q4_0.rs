//! Q4_0: 32 weights of 4 bits and one scale, 4.5 bits a weight.
//!
//! A weight is `scale * (quant - 8)`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use crate::scale_search::{greatest_magnitude, search_symmetric};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 32 weights of 4 bits, 18 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// The scale.
    pub scale: F16Bits,
    /// Byte `i` holds quant `i` in its low half and quant `i + 16` in its high half.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_0>() == 18 && align_of::<BlockQ4_0>() == 1);

/// Unpacks 32 4-bit quants.
#[inline(always)]
pub(super) fn unpack_4_bits(bytes: &[u8; 16]) -> [u8; 32] {
    let mut quants = [0; 32];
    for (i, &byte) in bytes.iter().enumerate() {
        quants[i] = byte & 0xf;
        quants[i + 16] = byte >> 4;
    }
    quants
}

/// Packs 32 4-bit quants.
pub(super) fn pack_4_bits(quants: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| quants[i] | quants[i + 16] << 4)
}

impl BlockQ4_0 {
    /// Returns the quants in row order, in -8..=7.
    #[inline(always)]
    pub fn unpack(&self) -> [i8; 32] {
        unpack_4_bits(&self.quants).map(|quant| quant as i8 - 8)
    }
}

impl Block for BlockQ4_0 {
    const TYPE: TensorType = TensorType::Q4_0;
    const LEN: usize = 32;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (out, quant) in out.iter_mut().zip(self.unpack()) {
            *out = f32::from(quant) * scale;
        }
    }

    fn quantize(values: &[f32]) -> Self {
        let scale = greatest_magnitude(values).1 / -8.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let quant = |x: f32| ((x * inverse + 8.5) as i32 as i8).min(15) as u8;
        Self {
            scale: F16Bits::from_f32(scale),
            quants: std::array::from_fn(|i| quant(values[i]) | quant(values[i + 16]) << 4),
        }
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let values: &[f32; 32] = values.try_into().expect("a block has 32 values");
        let mut quants = [0; 32];
        let scale = search_symmetric(8, values, &importance.row_weights(values), &mut quants);
        Self {
            scale: F16Bits::from_f32(scale),
            quants: pack_4_bits(&bytemuck::cast(quants)),
        }
    }
}

impl QuantBlock for BlockQ4_0 {
    const QUANT_BITS: u32 = 4;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; 32];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; 32]> {
        BlockParts::new(unpack_4_bits(&self.quants), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

//! Q5_0: 32 weights of 5 bits and one scale, 5.5 bits a weight.
//!
//! A weight is `scale * (quant - 16)`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use crate::scale_search::{greatest_magnitude, search_symmetric};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 32 weights of 5 bits, 22 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// The scale.
    pub scale: F16Bits,
    /// In these 32 bits, the first byte lowest, bit `i` is the fifth bit of quant `i`.
    pub high_bits: [u8; 4],
    /// Byte `i` holds the low bits of quant `i` in its low half and those of quant `i + 16` in its high half.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_0>() == 22 && align_of::<BlockQ5_0>() == 1);

/// Adds the fifth bits to the low ones.
#[inline(always)]
pub(super) fn unpack_5_bits(quants: &[u8; 16], high_bits: [u8; 4]) -> [u8; 32] {
    let high = u32::from_le_bytes(high_bits);
    let mut unpacked = [0; 32];
    for (i, &byte) in quants.iter().enumerate() {
        unpacked[i] = byte & 0xf | ((high >> i & 1) << 4) as u8;
        unpacked[i + 16] = byte >> 4 | ((high >> (i + 16) & 1) << 4) as u8;
    }
    unpacked
}

/// Splits quants of 5 bits into low and high bits.
pub(super) fn pack_5_bits(unpacked: &[u8; 32]) -> ([u8; 16], [u8; 4]) {
    let quants = std::array::from_fn(|i| unpacked[i] & 0xf | (unpacked[i + 16] & 0xf) << 4);
    let high = (unpacked.iter().enumerate()).fold(0_u32, |bits, (i, &q)| bits | u32::from(q >> 4 & 1) << i);
    (quants, high.to_le_bytes())
}

impl BlockQ5_0 {
    /// Returns the quants in row order, in -16..=15.
    #[inline(always)]
    pub fn unpack(&self) -> [i8; 32] {
        unpack_5_bits(&self.quants, self.high_bits).map(|q| q as i8 - 16)
    }
}

impl Block for BlockQ5_0 {
    const TYPE: TensorType = TensorType::Q5_0;
    const LEN: usize = 32;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (out, quant) in out.iter_mut().zip(self.unpack()) {
            *out = f32::from(quant) * scale;
        }
    }

    fn quantize(values: &[f32]) -> Self {
        let scale = greatest_magnitude(values).1 / -16.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let quant = |x: f32| ((x * inverse + 16.5) as i32 as i8).min(31) as u8;
        let (quants, high_bits) = pack_5_bits(&std::array::from_fn(|i| quant(values[i])));
        Self {
            scale: F16Bits::from_f32(scale),
            high_bits,
            quants,
        }
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let values: &[f32; 32] = values.try_into().expect("a block has 32 values");
        let mut quants = [0; 32];
        let scale = search_symmetric(16, values, &importance.row_weights(values), &mut quants);
        let (quants, high_bits) = pack_5_bits(&bytemuck::cast(quants));
        Self {
            scale: F16Bits::from_f32(scale),
            high_bits,
            quants,
        }
    }
}

impl QuantBlock for BlockQ5_0 {
    const QUANT_BITS: u32 = 5;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; 32];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; 32]> {
        BlockParts::new(
            unpack_5_bits(&self.quants, self.high_bits),
            &self.scale.to_le_bytes(),
        )
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

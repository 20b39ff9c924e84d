//! Q5_1: 32 weights of 5 bits, a scale and a minimum, 6 bits a weight.
//!
//! A weight is `scale * quant + min`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::q4_1::range;
use super::q5_0::{pack_5_bits, unpack_5_bits};
use crate::scale_search::{MinSearch, search_with_min};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 32 weights of 5 bits with a minimum, 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// The scale.
    pub scale: F16Bits,
    /// The value of quant 0.
    pub min: F16Bits,
    /// In these 32 bits, the first byte lowest, bit `i` is the fifth bit of quant `i`.
    pub high_bits: [u8; 4],
    /// Byte `i` holds the low bits of quant `i` in its low half and those of quant `i + 16` in its high half.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_1>() == 24 && align_of::<BlockQ5_1>() == 1);

impl BlockQ5_1 {
    /// Returns the quants in row order, in 0..=31.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; 32] {
        unpack_5_bits(&self.quants, self.high_bits)
    }
}

impl Block for BlockQ5_1 {
    const TYPE: TensorType = TensorType::Q5_1;
    const LEN: usize = 32;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let (scale, min) = (self.scale.to_f32(), self.min.to_f32());
        for (out, quant) in out.iter_mut().zip(self.unpack()) {
            *out = f32::from(quant) * scale + min;
        }
    }

    fn quantize(values: &[f32]) -> Self {
        let (min, max) = range(values);
        let scale = (max - min) / 31.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let quant = |x: f32| ((x - min) * inverse + 0.5) as u8;
        let (quants, high_bits) = pack_5_bits(&std::array::from_fn(|i| quant(values[i])));
        Self {
            scale: F16Bits::from_f32(scale),
            min: F16Bits::from_f32(min),
            high_bits,
            quants,
        }
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let values: &[f32; 32] = values.try_into().expect("a block has 32 values");
        let mut quants = [0; 32];
        let search = MinSearch::weighted(31);
        let found = search_with_min(&search, values, &importance.row_weights(values), &mut quants);
        let (quants, high_bits) = pack_5_bits(&quants);
        Self {
            scale: F16Bits::from_f32(found.scale),
            min: F16Bits::from_f32(-found.min),
            high_bits,
            quants,
        }
    }
}

impl QuantBlock for BlockQ5_1 {
    const QUANT_BITS: u32 = 5;
    const HEADER_BYTES: usize = 4;
    type Quants = [u8; 32];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; 32]> {
        let [scale, min] = [self.scale, self.min].map(F16Bits::to_le_bytes);
        BlockParts::new(self.unpack(), bytemuck::bytes_of(&[scale, min]))
    }

    fn set_scales(&mut self, scale: f32, min: f32) {
        self.scale = F16Bits::from_f32(scale);
        self.min = F16Bits::from_f32(min);
    }
}

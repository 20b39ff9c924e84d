//! Q4_1: 32 weights of 4 bits, a scale and a minimum, 5 bits a weight.
//!
//! A weight is `scale * quant + min`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::q4_0::{pack_4_bits, unpack_4_bits};
use crate::scale_search::{MinSearch, search_with_min};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 32 weights of 4 bits with a minimum, 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// The scale.
    pub scale: F16Bits,
    /// The value of quant 0.
    pub min: F16Bits,
    /// Byte `i` holds quant `i` in its low half and quant `i + 16` in its high half.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_1>() == 20 && align_of::<BlockQ4_1>() == 1);

impl BlockQ4_1 {
    /// Returns the quants in row order, in 0..=15.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; 32] {
        unpack_4_bits(&self.quants)
    }
}

/// Returns the smallest and the largest value.
pub(super) fn range(values: &[f32]) -> (f32, f32) {
    let (mut min, mut max) = (f32::MAX, f32::MIN);
    for &x in values {
        if x < min {
            min = x;
        }
        if x > max {
            max = x;
        }
    }
    (min, max)
}

impl Block for BlockQ4_1 {
    const TYPE: TensorType = TensorType::Q4_1;
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
        let scale = (max - min) / 15.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let quant = |x: f32| (((x - min) * inverse + 0.5) as i32 as i8).min(15) as u8;
        Self {
            scale: F16Bits::from_f32(scale),
            min: F16Bits::from_f32(min),
            quants: std::array::from_fn(|i| quant(values[i]) | quant(values[i + 16]) << 4),
        }
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let values: &[f32; 32] = values.try_into().expect("a block has 32 values");
        let mut quants = [0; 32];
        let search = MinSearch::weighted(15);
        let found = search_with_min(&search, values, &importance.row_weights(values), &mut quants);
        Self {
            scale: F16Bits::from_f32(found.scale),
            min: F16Bits::from_f32(-found.min),
            quants: pack_4_bits(&quants),
        }
    }
}

impl QuantBlock for BlockQ4_1 {
    const QUANT_BITS: u32 = 4;
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

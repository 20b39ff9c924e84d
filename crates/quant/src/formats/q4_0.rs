//! Q4_0: 32 weights of 4 bits and one scale, 4.5 bits a weight.
//!
//! A weight is `scale * (quant - 8)`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use crate::scale_search::greatest_magnitude;
use crate::{Block, F16Bits};

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

impl BlockQ4_0 {
    /// The quants in row order, in -8..=7.
    #[inline(always)]
    pub fn unpack(&self) -> [i8; 32] {
        let mut quants = [0; 32];
        for (i, &byte) in self.quants.iter().enumerate() {
            quants[i] = (byte & 0xf) as i8 - 8;
            quants[i + 16] = (byte >> 4) as i8 - 8;
        }
        quants
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
}

//! NVFP4: 64 weights of 4-bit floats in four groups of 16, each with an 8-bit float as its scale; 4.5 bits
//! per weight.
//!
//! A weight of group `g` is `scale[g] / 2 * CODEBOOK[quant]`, the codebook having twice the values of the
//! 4-bit floats. A scale has no sign, four exponent bits and three mantissa bits. Files may have another
//! scale for a whole tensor, in a separate tensor.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::mxfp4::{CODEBOOK, nearest};
use crate::scale_search::greatest_magnitude;
use crate::{Block, BlockParts, QuantBlock};

/// 64 weights of 4 bits, 36 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockNVFP4 {
    /// The scales of the groups.
    pub group_scales: [u8; 4],
    /// For each group, byte `i` holds quant `i` in its low half and quant `i + 8` in its high half.
    pub quants: [[u8; 8]; 4],
}

const _: () = assert!(size_of::<BlockNVFP4>() == 36 && align_of::<BlockNVFP4>() == 1);

/// The pattern with all bits but the sign set: NaN, which counts as 0.
const NAN: u8 = 0x7f;

/// Returns half the value of a scale.
#[inline(always)]
fn half_scale(byte: u8) -> f32 {
    // With the exponent's bias off by 120, multiplying by a power of two is exact for normal and subnormal
    // numbers; half of it is 2^119.
    let bits = if byte == NAN {
        0
    } else {
        u32::from(byte & 0x7f) << 20
    };
    f32::from_bits(bits) * f32::from_bits((119 + 127) << 23)
}

/// Returns the nearest scale, ties away from zero; from 256 on it is the largest, 448, as in the reference.
fn nearest_scale(value: f32) -> u8 {
    let value = value.clamp(0.0, 448.0);
    let bits = value.to_bits();
    if bits >> 23 <= 120 {
        return ((value * 512.0 + 0.5) as u8).min(7);
    }
    let byte = ((bits >> 19) - (120 << 4)).div_ceil(2) as u8;
    if byte < 0x78 { byte } else { 0x7e }
}

impl BlockNVFP4 {
    /// Returns the quants in row order.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; 64] {
        std::array::from_fn(|i| self.quants[i / 16][i % 8] >> (4 * (i / 8 % 2)) & 0xf)
    }

    /// Returns the scales without meaningless bits: the sign, and the NaN pattern, which counts as 0.
    #[inline(always)]
    pub fn plain_scales(&self) -> [u8; 4] {
        self.group_scales
            .map(|byte| if byte == NAN { 0 } else { byte & 0x7f })
    }
}

impl Block for BlockNVFP4 {
    const TYPE: TensorType = TensorType::NVFP4;
    const LEN: usize = 64;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let quants = self.unpack();
        for (g, (out, quants)) in out.chunks_exact_mut(16).zip(quants.chunks_exact(16)).enumerate() {
            let scale = half_scale(self.group_scales[g]);
            for (out, &quant) in out.iter_mut().zip(quants) {
                *out = f32::from(CODEBOOK[usize::from(quant)]) * scale;
            }
        }
    }

    fn quantize(values: &[f32]) -> Self {
        let mut block = Self::zeroed();
        for (g, values) in values.as_chunks::<16>().0.iter().enumerate() {
            block.group_scales[g] = nearest_scale(greatest_magnitude(values).0 / 6.0);
            let scale = half_scale(block.group_scales[g]);
            block.quants[g] =
                std::array::from_fn(|i| nearest(values[i], scale) | nearest(values[i + 8], scale) << 4);
        }
        block
    }
}

impl QuantBlock for BlockNVFP4 {
    const QUANT_BITS: u32 = 4;
    const CODEBOOK: Option<[i8; 16]> = Some(CODEBOOK);
    const GROUP_SCALE_BYTES: usize = 2;
    const HEADER_BYTES: usize = 0;
    type Quants = [u8; 64];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; 64]> {
        BlockParts::with_group_scales(self.unpack(), &self.plain_scales(), &[])
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.group_scales = [nearest_scale(2.0 * scale.abs()); 4];
    }
}

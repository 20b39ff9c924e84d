//! TQ2_0: 256 ternary weights of 2 bits and one scale; 2.0625 bits a weight.
//!
//! A weight is `scale * (quant - 1)`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::q2_k::{pack_2_bits, unpack_2_bits};
use crate::scale_search::greatest_magnitude;
use crate::{Block, BlockParts, F16Bits, QuantBlock};

/// 256 weights of 2 bits, 66 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockTQ2_0 {
    /// For each 128 weights in order, 32 bytes: bits `2 * k` and up of byte `i` are quant `32 * k + i`.
    pub quants: [u8; 64],
    /// The scale.
    pub scale: F16Bits,
}

const _: () = assert!(size_of::<BlockTQ2_0>() == 66 && align_of::<BlockTQ2_0>() == 1);

/// Returns the scale of ternary weights, and their quants in 0..=2: the scale is the largest magnitude, and
/// each weight is rounded to a multiple of it.
pub(super) fn quantize_ternary<const N: usize>(values: &[f32]) -> (f32, [u8; N]) {
    let (magnitude, _) = greatest_magnitude(values);
    let inverse = if magnitude > 0.0 { 1.0 / magnitude } else { 0.0 };
    let quants = std::array::from_fn(|i| ((values[i] * inverse).round().clamp(-1.0, 1.0) as i8 + 1) as u8);
    (magnitude, quants)
}

impl BlockTQ2_0 {
    /// Returns the quants in row order, in 0..=3.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        unpack_2_bits(&self.quants)
    }
}

impl Block for BlockTQ2_0 {
    const TYPE: TensorType = TensorType::TQ2_0;
    const LEN: usize = SUPERBLOCK_LEN;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (out, quant) in out.iter_mut().zip(self.unpack()) {
            *out = scale * (f32::from(quant) - 1.0);
        }
    }

    fn quantize(values: &[f32]) -> Self {
        let (scale, quants) = quantize_ternary(values);
        Self {
            quants: pack_2_bits(&quants),
            scale: F16Bits::from_f32(scale),
        }
    }
}

impl QuantBlock for BlockTQ2_0 {
    const QUANT_BITS: u32 = 2;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        BlockParts::new(self.unpack(), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

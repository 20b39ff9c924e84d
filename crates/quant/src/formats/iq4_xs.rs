//! IQ4_XS: 256 weights of 4 bits that index a fixed codebook, in eight groups of 32 with a 6-bit scale each; 4.25 bits
//! a weight.
//!
//! A weight of group `g` is `scale * (scales[g] - 32) * CODEBOOK[quant]`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::iq4_codebook::{CODEBOOK, nearest_quant};
use super::iq4_nl::{look_up, search_scale};
use super::q4_0::{pack_4_bits, unpack_4_bits};
use crate::block::sum_of_squares;
use crate::scale_search::{greatest_magnitude, nearest_int, squares};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 256 weights of 4 bits, 136 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ4XS {
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// In these 16 bits, the first byte lowest, bits `2 * g` and up are the high part of scale `g`.
    pub scales_high: [u8; 2],
    /// Byte `i` holds the low part of scale `2 * i` in its low half and that of scale `2 * i + 1` in its high half.
    pub scales_low: [u8; 4],
    /// For each group, 16 bytes: byte `i` holds quant `i` in its low half and quant `i + 16` in its high
    /// half.
    pub quants: [[u8; 16]; 8],
}

const _: () = assert!(size_of::<BlockIQ4XS>() == 136 && align_of::<BlockIQ4XS>() == 1);

impl BlockIQ4XS {
    /// Returns the groups' scales, in -32..=31.
    #[inline(always)]
    pub fn unpack_scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_high);
        let mut scales = [0; 8];
        for (g, scale) in scales.iter_mut().enumerate() {
            let low = self.scales_low[g / 2] >> (4 * (g % 2)) & 0xf;
            *scale = (low | ((high >> (2 * g) & 3) << 4) as u8) as i8 - 32;
        }
        scales
    }

    /// Encodes values; `weights` returns the error weights of a group.
    fn encode(values: &[f32], weights: impl Fn(usize, &[f32; 32]) -> [f32; 32]) -> Self {
        let (groups, _) = values.as_chunks::<32>();
        let found: [f32; 8] = std::array::from_fn(|g| search_scale(&groups[g], &weights(g, &groups[g])));
        let scale = -greatest_magnitude(&found).1 / 32.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };

        let mut block = Self {
            scale: F16Bits::from_f32(scale),
            ..Self::zeroed()
        };
        let mut scales_high = 0;
        for g in 0..8 {
            let group_scale = nearest_int(inverse * found[g]).clamp(-32, 31);
            let combined = scale * group_scale as f32;
            let inverse = if combined == 0.0 { 0.0 } else { 1.0 / combined };
            block.quants[g] = pack_4_bits(&groups[g].map(|x| nearest_quant(inverse * x)));
            let stored = (group_scale + 32) as u16;
            block.scales_low[g / 2] |= ((stored & 0xf) << (4 * (g % 2))) as u8;
            scales_high |= stored >> 4 << (2 * g);
        }
        block.scales_high = scales_high.to_le_bytes();
        block
    }
}

impl Block for BlockIQ4XS {
    const TYPE: TensorType = TensorType::IQ4_XS;
    const LEN: usize = SUPERBLOCK_LEN;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scales = self.unpack_scales();
        for (g, (out, quants)) in out.chunks_exact_mut(32).zip(&self.quants).enumerate() {
            let scale = self.scale.to_f32() * f32::from(scales[g]);
            for (out, value) in out.iter_mut().zip(look_up(&CODEBOOK, quants)) {
                *out = scale * f32::from(value);
            }
        }
    }

    fn quantize(values: &[f32]) -> Self {
        Self::encode(values, |_, group| squares(group))
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let mean_square = sum_of_squares(values) * (2.0 / 256.0);
        Self::encode(values, |g, group| importance.weights(g, group, mean_square))
    }
}

impl QuantBlock for BlockIQ4XS {
    const QUANT_BITS: u32 = 4;
    const CODEBOOK: Option<[i8; 16]> = Some(CODEBOOK);
    const GROUP_SCALE_BYTES: usize = 1;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        let mut quants = [0; SUPERBLOCK_LEN];
        for (quants, packed) in quants.as_chunks_mut().0.iter_mut().zip(&self.quants) {
            *quants = unpack_4_bits(packed);
        }
        let group_scales: [u8; 8] = bytemuck::cast(self.unpack_scales());
        BlockParts::with_group_scales(quants, &group_scales, &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

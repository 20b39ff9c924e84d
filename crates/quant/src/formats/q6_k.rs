//! Q6_K: 256 weights of 6 bits in sixteen groups of 16, each with an 8-bit scale; 6.5625 bits a weight.
//!
//! A weight of group `g` is `scale * scales[g] * (quant - 32)`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use crate::scale_search::{GROUP_MAX_EPS, greatest_magnitude, nearest_int, search_symmetric, squares};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 256 weights of 6 bits, 210 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ6K {
    /// For each 128 weights in order, 64 bytes: byte `i` holds the low bits of quant `i` in its low half and
    /// those of quant `i + 64` in its high half.
    pub low_bits: [u8; 128],
    /// For each 128 weights in order, 32 bytes: bits `2 * k` and up of byte `i` are the high bits of quant
    /// `32 * k + i`.
    pub high_bits: [u8; 64],
    /// The groups' scales.
    pub group_scales: [i8; 16],
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
}

const _: () = assert!(size_of::<BlockQ6K>() == 210 && align_of::<BlockQ6K>() == 1);

impl BlockQ6K {
    /// Returns the quants in row order, in 0..=63; 32 is subtracted from each.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut quants = [0; SUPERBLOCK_LEN];
        for (half, quants) in quants.chunks_exact_mut(128).enumerate() {
            let low = &self.low_bits[64 * half..][..64];
            let high = &self.high_bits[32 * half..][..32];
            for i in 0..32 {
                quants[i] = low[i] & 0xf | (high[i] & 3) << 4;
                quants[i + 32] = low[i + 32] & 0xf | (high[i] >> 2 & 3) << 4;
                quants[i + 64] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
                quants[i + 96] = low[i + 32] >> 4 | high[i] >> 6 << 4;
            }
        }
        quants
    }

    fn pack(quants: &[u8; SUPERBLOCK_LEN]) -> ([u8; 128], [u8; 64]) {
        let low_bits = std::array::from_fn(|i| {
            let low = i / 64 * 128 + i % 64;
            quants[low] & 0xf | (quants[low + 64] & 0xf) << 4
        });
        let high_bits = std::array::from_fn(|i| {
            let first = i / 32 * 128 + i % 32;
            (0..4).fold(0, |byte, k| byte | quants[first + 32 * k] >> 4 << (2 * k))
        });
        (low_bits, high_bits)
    }

    /// Encodes values; `weights` returns the error weights of a group.
    fn encode(values: &[f32], weights: impl Fn(usize, &[f32; 16]) -> [f32; 16]) -> Self {
        let (groups, _) = values.as_chunks::<16>();
        let mut quants = [[0_i8; 16]; 16];
        let found: [f32; 16] = std::array::from_fn(|g| {
            search_symmetric(32, &groups[g], &weights(g, &groups[g]), &mut quants[g])
        });

        let (magnitude, extreme) = greatest_magnitude(&found);
        if magnitude < GROUP_MAX_EPS {
            return Self::zeroed();
        }
        let inverse = -128.0 / extreme;
        let scale = F16Bits::from_f32(1.0 / inverse);
        let group_scales = found.map(|x| nearest_int(inverse * x).min(127) as i8);
        for ((values, quants), &group_scale) in groups.iter().zip(&mut quants).zip(&group_scales) {
            let scale = scale.to_f32() * f32::from(group_scale);
            if scale == 0.0 {
                continue;
            }
            for (quant, x) in quants.iter_mut().zip(values) {
                *quant = nearest_int(x / scale).clamp(-32, 31) as i8 + 32;
            }
        }

        let (low_bits, high_bits) = Self::pack(&bytemuck::cast(quants));
        Self {
            low_bits,
            high_bits,
            group_scales,
            scale,
        }
    }
}

impl Block for BlockQ6K {
    const TYPE: TensorType = TensorType::Q6_K;
    const LEN: usize = SUPERBLOCK_LEN;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let quants = self.unpack();
        for (g, (out, quants)) in out.chunks_exact_mut(16).zip(quants.chunks_exact(16)).enumerate() {
            let scale = self.scale.to_f32() * f32::from(self.group_scales[g]);
            for (out, &quant) in out.iter_mut().zip(quants) {
                *out = scale * f32::from(quant as i8 - 32);
            }
        }
    }

    fn quantize(values: &[f32]) -> Self {
        Self::encode(values, |_, group| squares(group))
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let (groups, _) = importance.values.as_chunks::<16>();
        Self::encode(values, |g, _| groups[g])
    }
}

impl QuantBlock for BlockQ6K {
    const QUANT_BITS: u32 = 6;
    const GROUP_SCALE_BYTES: usize = 2;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        let group_scales: [u8; 16] = bytemuck::cast(self.group_scales);
        BlockParts::with_group_scales(self.unpack(), &group_scales, &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

//! Q3_K: 256 weights of 3 bits in sixteen groups of 16, each with a 6-bit scale; 3.4375 bits a weight.
//!
//! A weight of group `g` is `scale * (scales[g] - 32) * (quant - 4)`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::q2_k::{pack_2_bits, unpack_2_bits};
use crate::block::sum_of_squares;
use crate::scale_search::{greatest_magnitude, nearest_int, search_coordinates, search_symmetric};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 256 weights of 3 bits, 110 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    /// Bit `k` of byte `i` is the third bit of quant `32 * k + i`.
    pub high_bits: [u8; 32],
    /// For each 128 weights in order, 32 bytes: bits `2 * k` and up of byte `i` are the low bits of quant
    /// `32 * k + i`.
    pub quants: [u8; 64],
    /// The groups' scales: the low half of byte `i` in 0..8 is the low part of scale `i`, its high half that of
    /// scale `i + 8`; bits `2 * k` and up of byte `8 + i` are the high part of scale `4 * k + i`.
    pub group_scales: [u8; 12],
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
}

const _: () = assert!(size_of::<BlockQ3K>() == 110 && align_of::<BlockQ3K>() == 1);

impl BlockQ3K {
    /// Returns the quants in row order, in 0..=7; 4 is subtracted from each.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut quants = unpack_2_bits(&self.quants);
        for (k, quants) in quants.chunks_exact_mut(32).enumerate() {
            for (quant, &high) in quants.iter_mut().zip(&self.high_bits) {
                *quant |= (high >> k & 1) << 2;
            }
        }
        quants
    }

    /// Returns the groups' scales, in -32..=31.
    #[inline(always)]
    pub fn unpack_scales(&self) -> [i8; 16] {
        let mut scales = [0; 16];
        for (i, scale) in scales.iter_mut().enumerate() {
            let low = self.group_scales[i % 8] >> (4 * (i / 8)) & 0xf;
            let high = self.group_scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            *scale = (low | high << 4) as i8 - 32;
        }
        scales
    }

    fn pack_scales(scales: [i8; 16]) -> [u8; 12] {
        let mut bytes = [0; 12];
        for (i, scale) in scales.into_iter().enumerate() {
            let scale = (scale + 32) as u8;
            bytes[i % 8] |= (scale & 0xf) << (4 * (i / 8));
            bytes[8 + i % 4] |= scale >> 4 << (2 * (i / 4));
        }
        bytes
    }

    /// Encodes values with known scales. Groups whose scale became zero keep their quants.
    fn with_scales(
        values: &[f32],
        scale: F16Bits,
        group_scales: [i8; 16],
        mut quants: [[i8; 16]; 16],
    ) -> Self {
        let (groups, _) = values.as_chunks::<16>();
        for ((values, quants), &group_scale) in groups.iter().zip(&mut quants).zip(&group_scales) {
            let scale = scale.to_f32() * f32::from(group_scale);
            if scale == 0.0 {
                continue;
            }
            for (quant, x) in quants.iter_mut().zip(values) {
                *quant = nearest_int(x / scale).clamp(-4, 3) as i8 + 4;
            }
        }

        let quants: [u8; SUPERBLOCK_LEN] = bytemuck::cast(quants);
        Self {
            high_bits: std::array::from_fn(|i| (0..8).fold(0, |bits, k| bits | quants[32 * k + i] >> 2 << k)),
            quants: pack_2_bits(&quants),
            group_scales: Self::pack_scales(group_scales),
            scale,
        }
    }
}

impl Block for BlockQ3K {
    const TYPE: TensorType = TensorType::Q3_K;
    const LEN: usize = SUPERBLOCK_LEN;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let (quants, scales) = (self.unpack(), self.unpack_scales());
        for (g, (out, quants)) in out.chunks_exact_mut(16).zip(quants.chunks_exact(16)).enumerate() {
            let scale = self.scale.to_f32() * f32::from(scales[g]);
            for (out, &quant) in out.iter_mut().zip(quants) {
                *out = scale * f32::from(quant as i8 - 4);
            }
        }
    }

    fn quantize(values: &[f32]) -> Self {
        let (groups, _) = values.as_chunks::<16>();
        let mut quants = [[0_i8; 16]; 16];
        let found: [f32; 16] = std::array::from_fn(|g| search_coordinates(4, &groups[g], &mut quants[g]));

        let (mut scale, mut group_scales) = (F16Bits::default(), [-32; 16]);
        let extreme = greatest_magnitude(&found).1;
        if extreme != 0.0 {
            let inverse = -32.0 / extreme;
            scale = F16Bits::from_f32(1.0 / inverse);
            group_scales = found.map(|x| (nearest_int(inverse * x) as i8).clamp(-32, 31));
        }
        Self::with_scales(values, scale, group_scales, quants)
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let mean_square = 2.0 * sum_of_squares(values) / 256.0;
        let (groups, _) = values.as_chunks::<16>();
        let (mut quants, mut sums) = ([[0_i8; 16]; 16], [0.0; 16]);
        let found: [f32; 16] = std::array::from_fn(|g| {
            let weights = importance.weights(g, &groups[g], mean_square);
            sums[g] = weights.iter().sum();
            search_symmetric(4, &groups[g], &weights, &mut quants[g])
        });
        let mut group_scales = [0; 16];
        let scale = search_symmetric(32, &found, &sums, &mut group_scales);
        let group_scales = group_scales.map(|scale| scale - 32);
        Self::with_scales(values, F16Bits::from_f32(scale), group_scales, quants)
    }
}

impl QuantBlock for BlockQ3K {
    const QUANT_BITS: u32 = 3;
    const GROUP_SCALE_BYTES: usize = 2;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        let group_scales: [u8; 16] = bytemuck::cast(self.unpack_scales());
        BlockParts::with_group_scales(self.unpack(), &group_scales, &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

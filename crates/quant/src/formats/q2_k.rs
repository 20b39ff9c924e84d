//! Q2_K: 256 weights of 2 bits in sixteen groups of 16, each with a 4-bit scale and minimum; 2.625 bits a weight.
//!
//! A weight of group `g` is `scale * (scales[g] & 15) * quant - min * (scales[g] >> 4)`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use crate::block::sum_of_squares;
use crate::scale_search::{
    ErrorMeasure, MinSearch, Rounding, ScaleMin, nearest_int, search_positive, search_with_min,
};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 256 weights of 2 bits, 84 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2K {
    /// For each group, the scale in the low half and the minimum in the high half.
    pub group_scales: [u8; 16],
    /// For each 128 weights in order, 32 bytes: bits `2 * k` and up of byte `i` are quant `32 * k + i`.
    pub quants: [u8; 64],
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// The block minimum, which multiplies the groups' minima.
    pub min: F16Bits,
}

const _: () = assert!(size_of::<BlockQ2K>() == 84 && align_of::<BlockQ2K>() == 1);

/// Unpacks 2-bit quants, 32 bytes per 128.
#[inline(always)]
pub(super) fn unpack_2_bits(bytes: &[u8; 64]) -> [u8; SUPERBLOCK_LEN] {
    let mut quants = [0; SUPERBLOCK_LEN];
    for (bytes, quants) in bytes.chunks_exact(32).zip(quants.chunks_exact_mut(128)) {
        for (k, quants) in quants.chunks_exact_mut(32).enumerate() {
            for (quant, &byte) in quants.iter_mut().zip(bytes) {
                *quant = byte >> (2 * k) & 3;
            }
        }
    }
    quants
}

/// Packs the two low bits of quants.
pub(super) fn pack_2_bits(quants: &[u8; SUPERBLOCK_LEN]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let first = i / 32 * 128 + i % 32;
        (0..4).fold(0, |byte, k| byte | (quants[first + 32 * k] & 3) << (2 * k))
    })
}

impl BlockQ2K {
    /// Returns the quants in row order, in 0..=3.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        unpack_2_bits(&self.quants)
    }

    /// Encodes values with known scales. Groups whose scale became zero keep their quants.
    fn with_scales(
        values: &[f32],
        scale: F16Bits,
        min: F16Bits,
        group_scales: [u8; 16],
        mut quants: [u8; SUPERBLOCK_LEN],
    ) -> Self {
        let (groups, _) = values.as_chunks::<16>();
        let (group_quants, _) = quants.as_chunks_mut::<16>();
        for (g, (values, quants)) in groups.iter().zip(group_quants).enumerate() {
            let scale = scale.to_f32() * f32::from(group_scales[g] & 0xf);
            if scale == 0.0 {
                continue;
            }
            let min = min.to_f32() * f32::from(group_scales[g] >> 4);
            for (quant, x) in quants.iter_mut().zip(values) {
                *quant = nearest_int((x + min) / scale).clamp(0, 3) as u8;
            }
        }
        Self {
            group_scales,
            quants: pack_2_bits(&quants),
            scale,
            min,
        }
    }
}

impl Block for BlockQ2K {
    const TYPE: TensorType = TensorType::Q2_K;
    const LEN: usize = SUPERBLOCK_LEN;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let quants = self.unpack();
        for (g, (out, quants)) in out.chunks_exact_mut(16).zip(quants.chunks_exact(16)).enumerate() {
            let scale = self.scale.to_f32() * f32::from(self.group_scales[g] & 0xf);
            let min = self.min.to_f32() * f32::from(self.group_scales[g] >> 4);
            for (out, &quant) in out.iter_mut().zip(quants) {
                *out = scale * f32::from(quant) - min;
            }
        }
    }

    fn quantize(values: &[f32]) -> Self {
        const SEARCH: MinSearch = MinSearch {
            max_quant: 3,
            first: -0.5,
            step: 0.1,
            n_steps: 15,
            error: ErrorMeasure::Absolute,
            rounding: Rounding::ThenClamp,
        };
        let mut quants = [0; SUPERBLOCK_LEN];
        let (groups, _) = values.as_chunks::<16>();
        let (group_quants, _) = quants.as_chunks_mut::<16>();
        let found: [ScaleMin; 16] = std::array::from_fn(|g| {
            search_with_min(
                &SEARCH,
                &groups[g],
                &groups[g].map(f32::abs),
                &mut group_quants[g],
            )
        });

        let greatest = |part: fn(&ScaleMin) -> f32| {
            found
                .iter()
                .map(part)
                .fold(0.0, |max, x| if x > max { x } else { max })
        };
        let (max_scale, max_min) = (greatest(|group| group.scale), greatest(|group| group.min));
        let quantize = |max: f32, x: f32| {
            if max > 0.0 {
                nearest_int(15.0 / max * x) as u8
            } else {
                0
            }
        };
        let whole = |max: f32| {
            if max > 0.0 {
                F16Bits::from_f32(max / 15.0)
            } else {
                F16Bits::default()
            }
        };
        let (scale, min) = (whole(max_scale), whole(max_min));
        let group_scales =
            found.map(|group| quantize(max_scale, group.scale) | quantize(max_min, group.min) << 4);

        Self::with_scales(values, scale, min, group_scales, quants)
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        const SEARCH: MinSearch = MinSearch::weighted(3);
        let mean_square = sum_of_squares(values) / 256.0;
        let mut quants = [0; SUPERBLOCK_LEN];
        let (groups, _) = values.as_chunks::<16>();
        let (group_quants, _) = quants.as_chunks_mut::<16>();
        let mut sums = [0.0; 16];
        let found: [ScaleMin; 16] = std::array::from_fn(|g| {
            let weights = importance.weights(g, &groups[g], mean_square);
            sums[g] = weights.iter().sum();
            search_with_min(&SEARCH, &groups[g], &weights, &mut group_quants[g])
        });
        let (mut scales, mut mins) = ([0; 16], [0; 16]);
        let scale = search_positive(15, &found.map(|group| group.scale), &sums, &mut scales);
        let min = search_positive(15, &found.map(|group| group.min), &sums, &mut mins);
        let group_scales = std::array::from_fn(|g| scales[g] | mins[g] << 4);
        let (scale, min) = (F16Bits::from_f32(scale), F16Bits::from_f32(min));
        Self::with_scales(values, scale, min, group_scales, quants)
    }
}

impl QuantBlock for BlockQ2K {
    const QUANT_BITS: u32 = 2;
    const GROUP_SCALE_BYTES: usize = 2;
    const HEADER_BYTES: usize = 4;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        let [scale, min] = [self.scale, self.min].map(F16Bits::to_le_bytes);
        BlockParts::with_group_scales(
            self.unpack(),
            &self.group_scales,
            bytemuck::bytes_of(&[scale, min]),
        )
    }

    fn set_scales(&mut self, scale: f32, min: f32) {
        self.scale = F16Bits::from_f32(scale);
        self.min = F16Bits::from_f32(min);
    }
}

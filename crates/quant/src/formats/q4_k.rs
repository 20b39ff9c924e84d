//! Q4_K: 256 weights of 4 bits in eight groups of 32, each with a 6-bit scale and minimum; 4.5 bits a weight.
//!
//! A weight of group `g` is `scale * scales[g] * quant - min * mins[g]`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::k_scales::QuantizedScales;
use super::{KScales, SUPERBLOCK_LEN};
use crate::block::sum_of_squares;
use crate::scale_search::{ErrorMeasure, MinSearch, Rounding, ScaleMin, search_with_min};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 256 weights of 4 bits, 144 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4K {
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// The block minimum, which multiplies the groups' minima.
    pub min: F16Bits,
    /// Scales and minima of the groups.
    pub group_scales: KScales,
    /// For each 64 weights in order, 32 bytes: byte `i` holds quant `i` in its low half and quant `i + 32` in
    /// its high half, so that a half belongs to one group.
    pub quants: [u8; 128],
}

const _: () = assert!(size_of::<BlockQ4K>() == 144 && align_of::<BlockQ4K>() == 1);

/// Returns the weights' importance: the root mean square of their group plus their own magnitude.
pub(super) fn importance(values: &[f32; 32]) -> [f32; 32] {
    let mut sum = 0.0;
    for x in values {
        sum += x * x;
    }
    let rms = (sum / 32.0_f32).sqrt();
    values.map(|x| rms + x.abs())
}

/// Finds scale and minimum of each group of 32.
pub(super) fn search_groups(search: &MinSearch, values: &[f32], quants: &mut [u8; 256]) -> [ScaleMin; 8] {
    let (groups, _) = values.as_chunks::<32>();
    let (quants, _) = quants.as_chunks_mut::<32>();
    std::array::from_fn(|g| search_with_min(search, &groups[g], &importance(&groups[g]), &mut quants[g]))
}

/// Finds and rounds scale and minimum of each group of 32 with weights from an importance matrix, then the
/// quants.
pub(super) fn quantize_groups(
    max_quant: i32,
    values: &[f32],
    importance: &Importance<'_>,
    quants: &mut [u8; 256],
) -> QuantizedScales {
    let search = MinSearch::weighted(max_quant);
    let mean_square = 2.0 * sum_of_squares(values) / 256.0;
    let (groups, _) = values.as_chunks::<32>();
    let mut sums = [0.0; 8];
    let (group_quants, _) = quants.as_chunks_mut::<32>();
    let found = std::array::from_fn(|g| {
        let weights = importance.weights(g, &groups[g], mean_square);
        sums[g] = weights.iter().sum();
        search_with_min(&search, &groups[g], &weights, &mut group_quants[g])
    });
    let scales = QuantizedScales::weighted(&found, &sums);
    scales.requantize(max_quant, values, quants);
    scales
}

impl BlockQ4K {
    /// Returns the quants in row order, in 0..=15.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut quants = [0; SUPERBLOCK_LEN];
        for (bytes, quants) in self.quants.chunks_exact(32).zip(quants.chunks_exact_mut(64)) {
            for (i, &byte) in bytes.iter().enumerate() {
                quants[i] = byte & 0xf;
                quants[i + 32] = byte >> 4;
            }
        }
        quants
    }

    fn pack(scales: &QuantizedScales, quants: &[u8; SUPERBLOCK_LEN]) -> Self {
        Self {
            scale: scales.scale,
            min: scales.min,
            group_scales: scales.group_scales,
            quants: std::array::from_fn(|i| {
                let low = i / 32 * 64 + i % 32;
                quants[low] | quants[low + 32] << 4
            }),
        }
    }
}

impl Block for BlockQ4K {
    const TYPE: TensorType = TensorType::Q4_K;
    const LEN: usize = SUPERBLOCK_LEN;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let (scales, mins) = self.group_scales.unpack();
        let quants = self.unpack();
        for (g, (out, quants)) in out.chunks_exact_mut(32).zip(quants.chunks_exact(32)).enumerate() {
            let scale = self.scale.to_f32() * f32::from(scales[g]);
            let min = self.min.to_f32() * f32::from(mins[g]);
            for (out, &quant) in out.iter_mut().zip(quants) {
                *out = scale * f32::from(quant) - min;
            }
        }
    }

    fn quantize(values: &[f32]) -> Self {
        const SEARCH: MinSearch = MinSearch {
            max_quant: 15,
            first: -1.0,
            step: 0.1,
            n_steps: 20,
            error: ErrorMeasure::Squared,
            rounding: Rounding::ThenClamp,
        };
        let mut quants = [0; SUPERBLOCK_LEN];
        let scales = QuantizedScales::new(&search_groups(&SEARCH, values, &mut quants));
        scales.requantize(SEARCH.max_quant, values, &mut quants);
        Self::pack(&scales, &quants)
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let mut quants = [0; SUPERBLOCK_LEN];
        let scales = quantize_groups(15, values, importance, &mut quants);
        Self::pack(&scales, &quants)
    }
}

impl QuantBlock for BlockQ4K {
    const QUANT_BITS: u32 = 4;
    const HEADER_BYTES: usize = 16;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        let [scale, min] = [self.scale, self.min].map(F16Bits::to_le_bytes);
        let mut parts = BlockParts::new(self.unpack(), bytemuck::bytes_of(&[scale, min]));
        parts.header[4..].copy_from_slice(&self.group_scales.0);
        parts
    }

    fn set_scales(&mut self, scale: f32, min: f32) {
        self.scale = F16Bits::from_f32(scale);
        self.min = F16Bits::from_f32(min);
    }
}

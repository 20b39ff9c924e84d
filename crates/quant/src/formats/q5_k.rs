//! Q5_K: 256 weights of 5 bits in eight groups of 32, each with a 6-bit scale and minimum; 5.5 bits a weight.
//!
//! A weight of group `g` is `scale * scales[g] * quant - min * mins[g]`.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::k_scales::QuantizedScales;
use super::q4_k::{quantize_groups, search_groups};
use super::{KScales, SUPERBLOCK_LEN};
use crate::scale_search::{ErrorMeasure, MinSearch, Rounding};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 256 weights of 5 bits, 176 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5K {
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// The block minimum, which multiplies the groups' minima.
    pub min: F16Bits,
    /// Scales and minima of the groups.
    pub group_scales: KScales,
    /// Bit `g` of byte `i` is the fifth bit of quant `32 * g + i`.
    pub high_bits: [u8; 32],
    /// For each 64 weights in order, 32 bytes: byte `i` holds the low bits of quant `i` in its low half and
    /// those of quant `i + 32` in its high half.
    pub quants: [u8; 128],
}

const _: () = assert!(size_of::<BlockQ5K>() == 176 && align_of::<BlockQ5K>() == 1);

impl BlockQ5K {
    /// Returns the quants in row order, in 0..=31.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut quants = [0; SUPERBLOCK_LEN];
        for (pair, (bytes, quants)) in self
            .quants
            .chunks_exact(32)
            .zip(quants.chunks_exact_mut(64))
            .enumerate()
        {
            for (i, (&byte, &high)) in bytes.iter().zip(&self.high_bits).enumerate() {
                quants[i] = byte & 0xf | (high >> (2 * pair) & 1) << 4;
                quants[i + 32] = byte >> 4 | (high >> (2 * pair + 1) & 1) << 4;
            }
        }
        quants
    }

    fn pack(scales: &QuantizedScales, quants: &[u8; SUPERBLOCK_LEN]) -> Self {
        Self {
            scale: scales.scale,
            min: scales.min,
            group_scales: scales.group_scales,
            high_bits: std::array::from_fn(|i| (0..8).fold(0, |bits, g| bits | quants[32 * g + i] >> 4 << g)),
            quants: std::array::from_fn(|i| {
                let low = i / 32 * 64 + i % 32;
                quants[low] & 0xf | (quants[low + 32] & 0xf) << 4
            }),
        }
    }
}

impl Block for BlockQ5K {
    const TYPE: TensorType = TensorType::Q5_K;
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
            max_quant: 31,
            first: -0.5,
            step: 0.1,
            n_steps: 15,
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
        let scales = quantize_groups(31, values, importance, &mut quants);
        Self::pack(&scales, &quants)
    }
}

impl QuantBlock for BlockQ5K {
    const QUANT_BITS: u32 = 5;
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

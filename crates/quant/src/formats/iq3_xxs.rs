//! IQ3_XXS: 256 weights of eight magnitudes, in fours that point into a grid, with signs and a 4-bit scale
//! per 32 weights; 3.0625 bits per weight.
//!
//! A weight of group `g` is `scale * (2 * scales[g] + 1) / 4 * CODEBOOK[quant]`. The grid has 256 of the
//! 4,096 fours of magnitudes.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::eights::even_signs;
use super::grid_search::{Grid, Refit, Search, greatest, split_even_signs, stored_scale};
use super::iq3_s::{fours_of, quants_of};
use crate::block::sum_of_squares;
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// The grid as a set; see [`fours_of`].
///
/// Source: ggml-org/llama.cpp, `ggml/src/ggml-common.h` (`iq3xxs_grid`).
#[rustfmt::skip]
const GRID_SET: [u64; 64] = [
    0x2800_0004_0205_8a15, 0x0100_1002_0522_050a, 0x2000_8200_8a05_0215, 0x0100_0000_0020_0582,
    0x2800_8010_8000_0800, 0x0000_0400_0400_0082, 0x0010_0000_2000_0000, 0x0002_0008_0000_5100,
    0x0000_0180_150a_050a, 0x0000_0000_0005_0205, 0x0400_0000_0102_050a, 0x0040_0040_0201_0005,
    0x0000_0100_0000_0022, 0x0200_0040_0011_0000, 0x0000_0000_0000_0020, 0x0000_0001_0004_0000,
    0x0000_0004_0245_0a05, 0x0188_0000_0102_052a, 0x0000_2001_8005_8205, 0x1100_0000_0000_1102,
    0x0000_0800_2000_0000, 0x1000_0002_0080_0008, 0x0000_0000_0000_0000, 0x0000_0020_0000_400a,
    0x0420_0100_000a_0502, 0x0000_0050_0201_0005, 0x0400_0400_0020_010a, 0x0000_0000_0800_0200,
    0x0400_0080_0100_0000, 0x0000_2000_0004_0041, 0x0008_0000_4000_1000, 0x0001_0000_0800_0000,
    0x0000_8800_a000_8010, 0x1000_0000_0000_0000, 0x0041_0001_8001_0000, 0x0000_0020_0000_0080,
    0x0010_0200_0000_0010, 0x0100_0008_0020_0000, 0x0000_0000_0000_0000, 0x0000_0000_0100_0520,
    0x0100_0002_0000_0400, 0x0000_2000_0040_0041, 0x0400_0000_0400_1000, 0x0000_0800_0000_0004,
    0x0400_0000_0088_0100, 0x0000_0000_0200_0004, 0x0000_0100_0000_0000, 0x0000_0004_0010_0000,
    0x0010_0050_0010_0000, 0x0002_0000_0002_0000, 0x0010_0000_0000_8000, 0x0000_0000_4100_0000,
    0x0000_0010_0000_0000, 0x0000_0400_0000_0020, 0x0000_0000_0800_0000, 0x0000_0000_0002_0008,
    0x0000_0400_0400_01a8, 0x0000_0001_0040_0000, 0x0000_0420_0000_0400, 0x0001_0000_0800_2001,
    0x0000_0002_0002_0000, 0x0000_0000_0010_0005, 0x0000_0000_0100_0000, 0x0000_0000_0000_0000,
];

/// The fours of the grid.
const GRID: [u16; 256] = fours_of(&GRID_SET);

/// The grid with the nearby points of all other codes.
static NEARBY: LazyLock<Grid<4>> = LazyLock::new(|| Grid::new(&GRID, 7, 2));

/// Groups with only smaller values count as all zero.
const GROUP_MAX_EPS: f32 = 1e-8;

/// The value of a quant with its sign; see [`QuantBlock::CODEBOOK`].
const CODEBOOK: [i8; 16] = [
    -62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62,
];

/// 256 weights of 8 magnitudes and a sign, 98 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ3XXS {
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// Each four's index in the grid.
    pub fours: [u8; 64],
    /// For each 32 weights, seven sign bits per eight, the lowest first, and the scale in the highest four
    /// bits.
    pub signs_and_scales: [[u8; 4]; 8],
}

const _: () = assert!(size_of::<BlockIQ3XXS>() == 98 && align_of::<BlockIQ3XXS>() == 1);

impl BlockIQ3XXS {
    /// Returns the odd factors of the groups' scales, in 1..=31.
    #[inline(always)]
    pub fn unpack_scales(&self) -> [u8; 8] {
        self.signs_and_scales.map(|word| 2 * (word[3] >> 4) + 1)
    }

    /// Returns the quants with signs, as indices into [`QuantBlock::CODEBOOK`], in row order.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut unpacked = [0; SUPERBLOCK_LEN];
        for (i, out) in unpacked.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = even_signs(u32::from_le_bytes(self.signs_and_scales[i / 4]) >> (7 * (i % 4)));
            let fours = [2 * i, 2 * i + 1].map(|four| quants_of(GRID[usize::from(self.fours[four])]));
            for (j, (out, &quant)) in out.iter_mut().zip(fours.as_flattened()).enumerate() {
                *out = if signs >> j & 1 == 1 { 7 - quant } else { 8 + quant };
            }
        }
        unpacked
    }
}

impl Block for BlockIQ3XXS {
    const TYPE: TensorType = TensorType::IQ3_XXS;
    const LEN: usize = SUPERBLOCK_LEN;
    const HAS_ENCODER: bool = false;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let (quants, scales) = (self.unpack(), self.unpack_scales());
        for (g, (out, quants)) in out.chunks_exact_mut(32).zip(quants.chunks_exact(32)).enumerate() {
            let scale = self.scale.to_f32() * f32::from(scales[g]) * 0.25;
            for (out, &quant) in out.iter_mut().zip(quants) {
                *out = scale * f32::from(CODEBOOK[usize::from(quant)]);
            }
        }
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        const SEARCH: Search = Search {
            step: 0.2,
            n_steps: 15,
            refit: Refit::OffGrid,
        };
        let mean_square = 2.0 * sum_of_squares(values) / 256.0;
        let mut block = Self::zeroed();
        let mut scales = [0.0; 8];
        for (g, values) in values.as_chunks::<32>().0.iter().enumerate() {
            let weights = importance.weights(g, values, mean_square);
            let eight_weights: [[f32; 8]; 4] = bytemuck::cast(weights);
            let values: [[f32; 8]; 4] = bytemuck::cast(*values);
            let split: [_; 4] = std::array::from_fn(|k| split_even_signs(&values[k], &eight_weights[k]));
            let magnitudes: [[f32; 4]; 8] = bytemuck::cast(split.map(|(magnitudes, _)| magnitudes));
            let max = greatest(magnitudes.as_flattened());
            if max < GROUP_MAX_EPS {
                continue;
            }
            let (scale, places) =
                NEARBY.search(&SEARCH, &magnitudes, &bytemuck::cast(weights), max, max / 15.0);
            let flip = if scale < 0.0 { 0x7f } else { 0 };
            let signs = (split.iter().rev()).fold(0, |word, (_, signs)| word << 7 | u32::from(signs ^ flip));
            block.signs_and_scales[g] = signs.to_le_bytes();
            for (four, place) in block.fours[8 * g..].iter_mut().zip(places) {
                *four = place as u8;
            }
            scales[g] = scale.abs();
        }
        let max_scale = greatest(&scales);
        if max_scale == 0.0 {
            return Self::zeroed();
        }
        let scale = max_scale / 31.0;
        block.scale = F16Bits::from_f32(scale * 1.0125);
        for (word, group_scale) in block.signs_and_scales.iter_mut().zip(scales) {
            word[3] |= stored_scale(1.0 / scale, group_scale, 15) << 4;
        }
        block
    }
}

impl QuantBlock for BlockIQ3XXS {
    const QUANT_BITS: u32 = 4;
    const CODEBOOK: Option<[i8; 16]> = Some(CODEBOOK);
    const GROUP_SCALE_BYTES: usize = 1;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        BlockParts::with_group_scales(self.unpack(), &self.unpack_scales(), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

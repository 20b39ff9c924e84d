//! IQ2_XXS: 256 weights of three magnitudes, in eights that point into a grid, with signs and a 4-bit scale
//! per 32 weights; 2.0625 bits per weight.
//!
//! A weight of group `g` is `scale * (2 * scales[g] + 1) / 8 * CODEBOOK[quant]`. The grid has 256 of the
//! 6,561 eights of magnitudes. The other IQ2 formats differ only in the positions of their bits and the size
//! of their grids.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::eights::{SET_WORDS, digits_of, eights_of, even_signs};
use super::grid_search::{Grid, Refit, Search, greatest, split_even_signs, stored_scale};
use crate::block::sum_of_squares;
use crate::scale_search::{GROUP_MAX_EPS, search_positive};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// The grid as a set; see [`eights_of`].
///
/// Source: ggml-org/llama.cpp, `ggml/src/ggml-common.h` (`iq2xxs_grid`).
#[rustfmt::skip]
const GRID_SET: [u64; SET_WORDS] = [
    0x4141_4410_5514_1555, 0x0000_1000_4414_0400, 0x0040_0014_0040_0400, 0x1050_0000_0400_0000,
    0x4004_1401_0011_4140, 0x0500_0010_0040_0450, 0x0001_0000_5000_0010, 0x4004_1441_0000_4000,
    0x0400_0004_0000_1414, 0x0000_0000_0004_0000, 0x0000_0000_0010_0400, 0x0010_1004_1400_0000,
    0x1001_0400_1104_0040, 0x0000_0001_0040_4000, 0x0000_0000_0401_0000, 0x0000_4004_4004_1000,
    0x0000_1000_0000_0004, 0x1000_4000_0000_1000, 0x0000_0000_0000_0000, 0x0040_0000_0400_0105,
    0x0000_0000_0011_0000, 0x0000_0000_0100_0000, 0x0414_0000_0000_0040, 0x0000_0501_0001_0000,
    0x0000_0010_1000_0000, 0x0000_0000_0050_0000, 0x0000_4140_0000_0000, 0x0040_0000_0000_4001,
    0x0000_0040_0004_0000, 0x0000_0000_0000_0000, 0x0000_0400_4000_0040, 0x0000_0000_0400_0000,
    0x0000_0000_0000_0000, 0x0000_0000_0100_0000, 0x0110_1041_4410_5000, 0x0000_4000_1000_0414,
    0x0040_4000_0044_0400, 0x4000_0001_0040_4000, 0x0010_0000_0001_0010, 0x0000_0010_0400_0010,
    0x0000_0001_0000_0000, 0x0414_0000_0000_0000, 0x0000_0000_0001_1000, 0x0401_1000_0000_0004,
    0x0004_0000_0000_0000, 0x0050_4410_0004_0000, 0x0100_0001_0400_0000, 0x0000_0000_0004_0000,
    0x0000_0000_0000_0001, 0x0000_0000_0000_0040, 0x0001_0000_0140_0000, 0x0400_0000_0000_0000,
    0x0000_0001_0000_0000, 0x0400_0000_0410_0400, 0x0040_0000_0000_0000, 0x0004_0000_0000_0000,
    0x0000_0000_0000_0000, 0x0001_0000_0100_0041, 0x0040_0000_0000_4000, 0x0000_4000_0000_0000,
    0x0011_0000_0000_1000, 0x0000_0000_0000_0000, 0x0400_0000_0000_1400, 0x0000_0000_0000_0000,
    0x0000_0000_0000_0000, 0x0000_0000_0000_0001, 0x0000_0000_0000_0000, 0x0000_0000_0000_0000,
    0x0004_0000_4140_0000, 0x0040_0400_0000_4000, 0x0000_0000_0000_0004, 0x0000_0000_0000_0004,
    0x0040_0010_0044_1400, 0x0400_0000_0400_0000, 0x0004_0000_1000_0000, 0x4000_0000_0100_0040,
    0x0000_0000_0000_0000, 0x0000_0000_0001_0000, 0x0000_0100_0000_0000, 0x0104_0000_0000_0000,
    0x0100_0000_0000_0410, 0x0040_0000_0000_4000, 0x0001_0000_0000_0000, 0x0040_0004_0000_0000,
    0x0000_0000_0000_0001, 0x0000_0000_0100_0000, 0x0000_0000_0000_0000, 0x0000_0000_0000_0000,
    0x0100_0000_0000_1000, 0x0000_0000_0000_0000, 0x0000_0000_0000_0000, 0x0000_1000_0000_0400,
    0x0000_0001_0000_0004, 0x0000_0400_0000_0000, 0x0000_0000_0000_0000, 0x0000_0000_0000_0400,
    0x0000_0000_0000_0000, 0x0000_0000_0000_0000, 0x0000_0000_0000_0000, 0x0000_0000_0004_0000,
    0x0000_0000_0000_0004, 0x0000_0000_0000_0000, 0x0000_0000_0000_0000,
];

/// The eights of the grid.
const GRID: [u16; 256] = eights_of(&GRID_SET);

/// The grid with the nearby points of all other codes.
static NEARBY: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&GRID, 2, 2));

/// The value of a grid digit with its sign, which is bit 2; see [`QuantBlock::CODEBOOK`].
pub(super) const CODEBOOK: [i8; 16] = [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// 256 weights of 3 magnitudes and a sign, 66 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ2XXS {
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// For each 32 weights, four indices into the grid, then a word: seven sign bits per eight, the lowest
    /// first, and the scale in the highest four bits.
    pub groups: [[[u8; 4]; 2]; 8],
}

const _: () = assert!(size_of::<BlockIQ2XXS>() == 66 && align_of::<BlockIQ2XXS>() == 1);

/// Combines the quants of an eight with their signs.
#[inline(always)]
pub(super) fn signed(eight: u16, signs: u8) -> [u8; 8] {
    let digits = digits_of(eight);
    std::array::from_fn(|i| digits[i] | (signs >> i & 1) << 2)
}

/// Decodes quants with 4-bit scales for groups of 16, two per byte.
#[inline(always)]
pub(super) fn dequantize(
    scale: F16Bits,
    scale_pairs: [u8; 8],
    quants: &[u8; SUPERBLOCK_LEN],
    out: &mut [f32],
) {
    for (g, (out, quants)) in out.chunks_exact_mut(16).zip(quants.chunks_exact(16)).enumerate() {
        let factor = 2 * (scale_pairs[g / 2] >> (4 * (g % 2)) & 0xf) + 1;
        let scale = scale.to_f32() * f32::from(factor) * 0.125;
        for (out, &quant) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(CODEBOOK[usize::from(quant)]);
        }
    }
}

impl BlockIQ2XXS {
    /// Returns the scales of the groups of 32, each twice, as the other formats have them for groups of 16.
    #[inline(always)]
    pub fn scale_pairs(&self) -> [u8; 8] {
        self.groups.map(|[_, word]| (word[3] >> 4) * 0x11)
    }

    /// Returns the quants with signs, as indices into [`QuantBlock::CODEBOOK`], in row order.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut unpacked = [0; SUPERBLOCK_LEN];
        for (out, [places, word]) in unpacked.as_chunks_mut::<32>().0.iter_mut().zip(self.groups) {
            let word = u32::from_le_bytes(word);
            for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *out = signed(GRID[usize::from(places[k])], even_signs(word >> (7 * k)));
            }
        }
        unpacked
    }
}

impl Block for BlockIQ2XXS {
    const TYPE: TensorType = TensorType::IQ2_XXS;
    const LEN: usize = SUPERBLOCK_LEN;
    const HAS_ENCODER: bool = false;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        dequantize(self.scale, self.scale_pairs(), &self.unpack(), out);
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        const SEARCH: Search = Search {
            step: 0.1,
            n_steps: 6,
            refit: Refit::All,
        };
        let mean_square = sum_of_squares(values) / 256.0;
        let mut block = Self::zeroed();
        let mut scales = [0.0; 8];
        for (g, values) in values.as_chunks::<32>().0.iter().enumerate() {
            let weights: [[f32; 8]; 4] = bytemuck::cast(importance.weights(g, values, mean_square));
            let values: [[f32; 8]; 4] = bytemuck::cast(*values);
            let split: [_; 4] = std::array::from_fn(|k| split_even_signs(&values[k], &weights[k]));
            let magnitudes = split.map(|(magnitudes, _)| magnitudes);
            if greatest(magnitudes.as_flattened()) < GROUP_MAX_EPS {
                continue;
            }
            let mut quants = [0; 32];
            let first = search_positive(4, magnitudes.as_flattened(), weights.as_flattened(), &mut quants);
            let max = first * 3.0;
            if max <= 0.0 {
                continue;
            }
            let (scale, places) = NEARBY.search(&SEARCH, &magnitudes, &weights, max, first);
            let flip = if scale < 0.0 { 0x7f } else { 0 };
            let signs = (split.iter().rev()).fold(0, |word, (_, signs)| word << 7 | u32::from(signs ^ flip));
            block.groups[g] = [places.map(|place| place as u8), signs.to_le_bytes()];
            scales[g] = scale.abs();
        }
        let max_scale = greatest(&scales);
        if max_scale == 0.0 {
            return Self::zeroed();
        }
        let scale = max_scale / 31.0;
        block.scale = F16Bits::from_f32(scale);
        for ([_, word], group_scale) in block.groups.iter_mut().zip(scales) {
            word[3] |= stored_scale(1.0 / scale, group_scale, 15) << 4;
        }
        block
    }
}

impl QuantBlock for BlockIQ2XXS {
    const QUANT_BITS: u32 = 3;
    const CODEBOOK: Option<[i8; 16]> = Some(CODEBOOK);
    const GROUP_SCALE_BYTES: usize = 1;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        BlockParts::with_group_scales(self.unpack(), &self.scale_pairs(), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

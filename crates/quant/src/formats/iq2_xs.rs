//! IQ2_XS: IQ2_XXS with a grid of 512 eights and a scale per 16 weights; 2.3125 bits per weight.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::eights::{SET_WORDS, eights_of, even_signs};
use super::grid_search::{Grid, Refit, Search, greatest, split_even_signs, stored_scale};
use super::iq2_xxs::{CODEBOOK, dequantize, signed};
use crate::block::sum_of_squares;
use crate::scale_search::GROUP_MAX_EPS;
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// The grid as a set; see [`eights_of`].
///
/// Source: ggml-org/llama.cpp, `ggml/src/ggml-common.h` (`iq2xs_grid`).
#[rustfmt::skip]
const GRID_SET: [u64; SET_WORDS] = [
    0x1541_4555_5155_5555, 0x4145_5055_5554_0145, 0x4010_5154_0001_0510, 0x5550_0001_0100_0441,
    0x0004_1401_1515_4145, 0x0404_0105_0041_4550, 0x0005_1000_4140_0000, 0x1105_5540_0000_4000,
    0x0540_4000_1001_0414, 0x0010_4000_0004_0001, 0x0000_0001_0400_0100, 0x4550_5155_5401_1000,
    0x1051_5400_0105_4041, 0x5000_5001_0000_4140, 0x0000_0100_0040_0011, 0x1001_4500_4145_5000,
    0x0100_0041_4000_0004, 0x0400_4000_0000_0000, 0x0000_0000_0001_0000, 0x0400_0040_0400_0505,
    0x0000_0000_0011_0000, 0x0000_0000_0000_0004, 0x5555_0000_0000_0040, 0x0400_0100_0041_4010,
    0x0010_0010_4000_1050, 0x0000_0100_0010_0000, 0x4000_4144_0000_0400, 0x0040_0000_0000_0001,
    0x1000_0000_1004_0000, 0x0000_0000_0100_0100, 0x0000_0401_4110_0000, 0x0000_0004_0010_0001,
    0x0000_0100_1000_0000, 0x0144_0000_0000_1001, 0x1105_5541_4555_5000, 0x0500_4145_5000_0414,
    0x0141_4040_0044_0001, 0x4000_0000_0000_0140, 0x0010_0004_1401_4515, 0x0000_0410_0105_0001,
    0x4000_0101_0040_0000, 0x0414_0000_0000_0010, 0x0000_0001_0101_1000, 0x0040_0041_0000_1004,
    0x0000_0000_0040_0000, 0x1041_4550_0000_0000, 0x4140_0000_0400_0105, 0x0000_0000_0005_0004,
    0x0000_0010_0000_0040, 0x0004_0401_0540_0000, 0x0000_4101_0000_4010, 0x0000_0010_4000_0000,
    0x0000_1000_0000_1000, 0x0000_4040_0040_0404, 0x0140_1000_0001_0000, 0x0000_0000_0000_0000,
    0x4000_0040_0000_0000, 0x0100_1010_0100_0041, 0x0000_0000_0000_5000, 0x0010_0000_0000_0000,
    0x4001_0001_0000_0004, 0x0000_0000_0000_0000, 0x0000_0001_1000_0400, 0x0000_0000_0000_1000,
    0x0000_0010_0000_0000, 0x0000_0000_0100_0000, 0x0000_0000_0000_0400, 0x0010_1000_0000_0400,
    0x0415_0105_1540_0000, 0x0001_1550_0000_5000, 0x0100_0000_0004_1004, 0x0001_4000_0000_0400,
    0x0040_0010_0054_1441, 0x0100_0000_0400_0040, 0x0400_0040_0000_0000, 0x1000_0001_0000_0000,
    0x0014_0100_0004_0004, 0x0000_0000_0004_0400, 0x0004_0000_0000_0000, 0x0105_1004_0410_0000,
    0x0000_0100_0100_0400, 0x0001_0000_0010_0001, 0x0400_0000_0000_0000, 0x0000_0044_0000_4000,
    0x0000_0000_0000_1041, 0x0014_0000_0000_1000, 0x0000_0001_0000_0000, 0x0400_0000_0000_0000,
    0x0000_0004_0000_0000, 0x0000_0000_0000_0100, 0x0000_0010_0000_0010, 0x0000_0004_0401_4500,
    0x4000_0000_0001_0000, 0x0001_1440_0000_0010, 0x0004_0001_0000_0010, 0x4000_0000_0040_0000,
    0x0000_0000_0000_0000, 0x0000_0000_0000_0000, 0x0040_0004_0000_4000, 0x1040_0000_0000_0045,
    0x0500_0000_0000_0004, 0x0000_0500_0000_0000, 0x0000_0001_0001_0000,
];

/// The eights of the grid.
const GRID: [u16; 512] = eights_of(&GRID_SET);

/// The grid with the nearby points of all other codes.
static NEARBY: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&GRID, 2, 2));

/// The scale search for 16 weights in IQ2_XS and IQ2_S.
pub(super) const SEARCH: Search = Search {
    step: 0.1,
    n_steps: 9,
    refit: Refit::OffGrid,
};

/// 256 weights of 3 magnitudes and a sign, 74 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ2XS {
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// For each eight, nine bits of its index in the grid, and seven bits of its signs.
    pub eights: [[u8; 2]; 32],
    /// Byte `i` holds scale `2 * i` in its low half and scale `2 * i + 1` in its high half.
    pub group_scales: [u8; 8],
}

const _: () = assert!(size_of::<BlockIQ2XS>() == 74 && align_of::<BlockIQ2XS>() == 1);

impl BlockIQ2XS {
    /// Returns the scales of the groups of 16, two per byte.
    #[inline(always)]
    pub fn scale_pairs(&self) -> [u8; 8] {
        self.group_scales
    }

    /// Returns the quants with signs, as indices into [`QuantBlock::CODEBOOK`], in row order.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut unpacked = [0; SUPERBLOCK_LEN];
        for (out, eight) in unpacked.as_chunks_mut::<8>().0.iter_mut().zip(self.eights) {
            let eight = u16::from_le_bytes(eight);
            *out = signed(GRID[usize::from(eight & 511)], even_signs(u32::from(eight >> 9)));
        }
        unpacked
    }
}

impl Block for BlockIQ2XS {
    const TYPE: TensorType = TensorType::IQ2_XS;
    const LEN: usize = SUPERBLOCK_LEN;
    const HAS_ENCODER: bool = false;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        dequantize(self.scale, self.scale_pairs(), &self.unpack(), out);
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let mean_square = sum_of_squares(values) / 256.0;
        let mut block = Self::zeroed();
        let mut scales = [0.0; 16];
        for (g, values) in values.as_chunks::<16>().0.iter().enumerate() {
            let weights: [[f32; 8]; 2] = bytemuck::cast(importance.weights(g, values, mean_square));
            let values: [[f32; 8]; 2] = bytemuck::cast(*values);
            let split: [_; 2] = std::array::from_fn(|k| split_even_signs(&values[k], &weights[k]));
            let magnitudes = split.map(|(magnitudes, _)| magnitudes);
            let max = greatest(magnitudes.as_flattened());
            if max < GROUP_MAX_EPS {
                continue;
            }
            let (scale, places) = NEARBY.search(&SEARCH, &magnitudes, &weights, max, max / 5.0);
            let flip = if scale < 0.0 { 0x7f } else { 0 };
            for k in 0..2 {
                block.eights[2 * g + k] = (places[k] | u16::from(split[k].1 ^ flip) << 9).to_le_bytes();
            }
            scales[g] = scale.abs();
        }
        let max_scale = greatest(&scales);
        if max_scale == 0.0 {
            return Self::zeroed();
        }
        let scale = max_scale / 31.0;
        block.scale = F16Bits::from_f32(scale);
        for (g, group_scale) in scales.into_iter().enumerate() {
            block.group_scales[g / 2] |= stored_scale(1.0 / scale, group_scale, 15) << (4 * (g % 2));
        }
        block
    }
}

impl QuantBlock for BlockIQ2XS {
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

//! IQ2_S: IQ2_XS with a grid of 1,024 eights and a bit for every sign; 2.5625 bits per weight.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::eights::{SET_WORDS, eights_of};
use super::grid_search::{Grid, greatest, split_signs, stored_scale};
use super::iq2_xs::SEARCH;
use super::iq2_xxs::{CODEBOOK, dequantize, signed};
use crate::block::sum_of_squares;
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// The grid as a set; see [`eights_of`].
///
/// Source: ggml-org/llama.cpp, `ggml/src/ggml-common.h` (`iq2s_grid`).
#[rustfmt::skip]
const GRID_SET: [u64; SET_WORDS] = [
    0x1555_4555_5155_5555, 0x5545_5051_5555_1105, 0x5010_5154_1415_0514, 0x5550_1011_1100_0455,
    0x5145_5415_5555_5545, 0x5414_5555_1455_5550, 0x1451_0004_5540_1051, 0x1155_1540_0010_5004,
    0x0540_0101_1051_5555, 0x0040_4010_5144_0455, 0x0000_1005_1014_0100, 0x4551_5155_5400_4000,
    0x5555_5414_5115_1555, 0x5000_1455_0515_5545, 0x0414_0005_0441_4114, 0x1455_5514_5545_5000,
    0x5505_1555_4010_5154, 0x0514_4000_1050_0414, 0x4000_0010_0004_1401, 0x0140_1051_5404_5155,
    0x0010_5004_1455_0000, 0x1000_0410_0400_0010, 0x5154_0000_0000_0400, 0x0011_0104_0541_5115,
    0x1401_0505_4041_5054, 0x0104_5100_1010_0004, 0x0514_5544_0005_0000, 0x1440_0010_5004_1455,
    0x0000_1100_0414_0105, 0x0004_0004_0001_0500, 0x1050_0014_1100_0000, 0x0004_1500_0040_0000,
    0x0000_1000_0000_0000, 0x0140_0400_0000_4004, 0x1555_5545_5555_5000, 0x5505_5545_5051_4414,
    0x1541_4010_5154_1455, 0x4000_0050_0414_5104, 0x4550_5155_5455_5555, 0x1051_5414_5555_0041,
    0x5004_1455_0000_4150, 0x5514_1000_0040_0010, 0x0001_0400_4145_5051, 0x0100_0041_4010_5154,
    0x0000_4000_1050_0040, 0x1555_4550_0000_0000, 0x5540_0051_5414_5555, 0x0010_5004_1455_0515,
    0x1400_0414_0105_1440, 0x5154_1455_5500_0000, 0x0414_5500_0041_4010, 0x1400_0000_4000_1050,
    0x0000_0000_0011_0004, 0x0040_4140_1051_5400, 0x0040_0010_5000_0001, 0x1000_1000_0000_0000,
    0x4400_0040_0000_0000, 0x1040_0414_5105_1545, 0x0004_1401_0515_4000, 0x0400_0104_0010_0010,
    0x1451_0100_0000_0100, 0x0000_0040_0010_5004, 0x0010_0010_1000_0414, 0x0000_0000_0004_0004,
    0x0000_1050_0010_0000, 0x0010_0100_0010_0000, 0x0000_0000_0000_4000, 0x0000_0004_0000_0000,
    0x5414_1145_1540_4000, 0x1455_4500_0141_1011, 0x1140_0041_4000_5154, 0x0000_0000_1050_0015,
    0x0041_4550_1155_5400, 0x4140_1051_5400_0105, 0x0010_5000_0101_0000, 0x1000_0000_0000_0050,
    0x0000_0001_0500_0141, 0x4000_0100_0001_4040, 0x0004_0000_0000_0000, 0x5545_0100_0040_0500,
    0x0000_4140_1051_5410, 0x0000_1010_5000_1411, 0x0000_1000_0414_0000, 0x4010_5154_4000_0000,
    0x1050_0040_0100_0041, 0x1100_0000_0000_4000, 0x0010_0010_0000_0010, 0x0001_1000_4140_0000,
    0x0000_0050_0000_0000, 0x0000_0000_0000_1100, 0x0040_0000_0000_0000, 0x0000_1054_1011_1100,
    0x0010_0000_0104_0000, 0x4004_1000_0000_0400, 0x5100_0144_0000_0014, 0x0100_0000_0040_0010,
    0x0000_0000_1000_1040, 0x0000_0000_0000_0000, 0x0040_0000_0000_0004, 0x0100_0000_0000_0040,
    0x0400_0040_0000_0000, 0x0000_0114_0140_0000, 0x0000_0001_0000_1000,
];

/// The eights of the grid.
const GRID: [u16; 1024] = eights_of(&GRID_SET);

/// The grid with the nearby points of all other codes.
static NEARBY: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&GRID, 2, 1));

/// Groups with only smaller values count as all zero.
const GROUP_MAX_EPS: f32 = 1e-8;

/// 256 weights of 3 magnitudes and a sign, 82 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ2S {
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// The low bits of each eight's index in the grid.
    pub eights: [u8; 32],
    /// Bit `i % 8` of byte `i / 8` is set if weight `i` is negative.
    pub signs: [u8; 32],
    /// Bits `2 * (i % 4)..` of byte `i / 4` are the two high bits of eight `i`.
    pub high_bits: [u8; 8],
    /// Byte `i` holds scale `2 * i` in its low half and scale `2 * i + 1` in its high half.
    pub group_scales: [u8; 8],
}

const _: () = assert!(size_of::<BlockIQ2S>() == 82 && align_of::<BlockIQ2S>() == 1);

impl BlockIQ2S {
    /// Returns the scales of the groups of 16, two per byte.
    #[inline(always)]
    pub fn scale_pairs(&self) -> [u8; 8] {
        self.group_scales
    }

    /// Returns the quants with signs, as indices into [`QuantBlock::CODEBOOK`], in row order.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut unpacked = [0; SUPERBLOCK_LEN];
        for (i, out) in unpacked.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = usize::from(self.high_bits[i / 4] >> (2 * (i % 4)) & 3);
            *out = signed(GRID[usize::from(self.eights[i]) | high << 8], self.signs[i]);
        }
        unpacked
    }
}

impl Block for BlockIQ2S {
    const TYPE: TensorType = TensorType::IQ2_S;
    const LEN: usize = SUPERBLOCK_LEN;
    const HAS_ENCODER: bool = false;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        dequantize(self.scale, self.scale_pairs(), &self.unpack(), out);
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let mean_square = 2.0 * sum_of_squares(values) / 256.0;
        let mut block = Self::zeroed();
        let mut scales = [0.0; 16];
        for (g, values) in values.as_chunks::<16>().0.iter().enumerate() {
            let weights: [[f32; 8]; 2] = bytemuck::cast(importance.weights(g, values, mean_square));
            let values: [[f32; 8]; 2] = bytemuck::cast(*values);
            let split = values.map(|eight| split_signs(&eight));
            let magnitudes = split.map(|(magnitudes, _)| magnitudes);
            let max = greatest(magnitudes.as_flattened());
            if max < GROUP_MAX_EPS {
                continue;
            }
            let (scale, places) = NEARBY.search(&SEARCH, &magnitudes, &weights, max, max / 5.0);
            let flip = if scale < 0.0 { 0xff } else { 0 };
            for k in 0..2 {
                let i = 2 * g + k;
                block.eights[i] = places[k] as u8;
                block.high_bits[i / 4] |= ((places[k] >> 8) << (2 * (i % 4))) as u8;
                block.signs[i] = split[k].1 ^ flip;
            }
            scales[g] = scale.abs();
        }
        let max_scale = greatest(&scales);
        if max_scale == 0.0 {
            return block;
        }
        let scale = max_scale / 31.0;
        block.scale = F16Bits::from_f32(scale * 0.9875);
        for (g, group_scale) in scales.into_iter().enumerate() {
            block.group_scales[g / 2] |= stored_scale(1.0 / scale, group_scale, 15) << (4 * (g % 2));
        }
        block
    }
}

impl QuantBlock for BlockIQ2S {
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

//! IQ3_S: 256 signed weights, in fours that point into a grid, in eight groups of 32 with a 4-bit scale;
//! 3.4375 bits per weight.
//!
//! A weight of group `g` is `scale * (2 * scales[g] + 1) * (2 * quant + 1)` or its negative; a quant is in
//! 0..=7. The grid has 512 of the 4,096 fours of quants, so nine bits identify one.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::grid_search::{Grid, Refit, Search, greatest, split_signs, stored_scale};
use crate::block::sum_of_squares;
use crate::scale_search::squares;
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// The grid as a set: bit `u % 64` of word `u / 64` marks the four `u`, whose quant `i` is bits `3 * i..`.
///
/// Source: ggml-org/llama.cpp, `ggml/src/ggml-common.h` (`iq3s_grid`).
#[rustfmt::skip]
const GRID_SET: [u64; 64] = [
    0x9205_0aa5_0823_57a7, 0x0422_0010_2289_2317, 0x0900_0aa4_1122_49a3, 0x2280_0510_4a05_2208,
    0x0100_0209_0412_8801, 0x0840_00a2_0845_0014, 0x0200_0400_0200_0a40, 0x0000_1100_0845_0015,
    0x0402_5000_5205_ab17, 0x4100_0502_0902_114b, 0x0401_2009_0411_a401, 0x0104_0002_1182_0992,
    0x0000_1144_0a00_1428, 0x0000_0200_0502_0902, 0x0000_0050_0091_0000, 0x0104_0002_2002_050a,
    0x2980_052a_058a_55ab, 0x0000_0204_1224_8905, 0x1200_8802_810a_0092, 0x0040_0104_0a14_0225,
    0x2400_0002_2409_0082, 0x0100_0801_8004_0210, 0x0002_2000_0002_0085, 0x0000_0108_0140_0220,
    0x0208_0294_2a04_aa04, 0x4401_0001_000a_102a, 0x0000_0100_1401_0401, 0x0800_208a_018a_1102,
    0x0011_0400_0204_4208, 0x0800_4010_0420_0502, 0x0000_0002_0000_4000, 0x0000_0000_2005_000a,
    0x0100_0102_0491_0411, 0x0000_2208_2104_0a84, 0x0104_8001_0802_210a, 0x0000_0000_2205_0a10,
    0x0200_0001_8010_0005, 0x0004_0000_0002_00a0, 0x0001_0000_1000_0800, 0x0000_0208_0100_2100,
    0x1040_0491_0004_1104, 0x0400_0000_0402_042a, 0x0000_0800_4108_0201, 0x0820_0210_0080_0184,
    0x0000_0040_0401_0012, 0x0000_0a00_0040_0400, 0x0000_0004_0000_0000, 0x0000_0000_0004_0014,
    0x0001_0000_0a00_2a00, 0x0010_0000_0081_0001, 0x0104_2004_1000_0400, 0x0000_0001_0002_1001,
    0x0004_0008_0020_0000, 0x0001_0000_1000_0009, 0x0000_0001_0000_0020, 0x0000_0000_0000_0a00,
    0x0004_1001_4005_0091, 0x0000_0028_0010_0204, 0x0000_0200_0102_4112, 0x0000_0800_2400_0004,
    0x0000_0100_0001_0822, 0x0000_0004_0004_0000, 0x0000_0000_0200_0004, 0x0000_0000_0000_0001,
];

/// The fours of the grid, indexed by the nine bits.
const GRID: [u16; 512] = fours_of(&GRID_SET);

/// The grid with the nearby points of all other codes.
static NEARBY: LazyLock<Grid<4>> = LazyLock::new(|| Grid::new(&GRID, 7, 3));

/// Returns the fours of a set, ascending.
pub(super) const fn fours_of<const N: usize>(set: &[u64; 64]) -> [u16; N] {
    let mut grid = [0; N];
    let (mut len, mut four) = (0, 0);
    while four < 4096 {
        if set[four / 64] >> (four % 64) & 1 == 1 {
            grid[len] = four as u16;
            len += 1;
        }
        four += 1;
    }
    assert!(len == N, "the fours of a grid");
    grid
}

/// The value of a quant with its sign; see [`QuantBlock::CODEBOOK`].
const CODEBOOK: [i8; 16] = [-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15];

/// 256 weights of 3 bits and a sign, 110 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ3S {
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// The low bits of each four's index in the grid.
    pub fours: [u8; 64],
    /// Bit `i % 8` of byte `i / 8` is the ninth bit of four `i`.
    pub high_bits: [u8; 8],
    /// Bit `i % 8` of byte `i / 8` is set if weight `i` is negative.
    pub signs: [u8; 32],
    /// Byte `i` holds scale `2 * i` in its low half and scale `2 * i + 1` in its high half.
    pub group_scales: [u8; 4],
}

const _: () = assert!(size_of::<BlockIQ3S>() == 110 && align_of::<BlockIQ3S>() == 1);

/// Returns the quants of a four.
pub(super) const fn quants_of(four: u16) -> [u8; 4] {
    [
        (four & 7) as u8,
        (four >> 3 & 7) as u8,
        (four >> 6 & 7) as u8,
        (four >> 9) as u8,
    ]
}

impl BlockIQ3S {
    /// Returns the odd factors of the groups' scales, in 1..=31.
    #[inline(always)]
    pub fn unpack_scales(&self) -> [u8; 8] {
        std::array::from_fn(|g| 2 * (self.group_scales[g / 2] >> (4 * (g % 2)) & 0xf) + 1)
    }

    /// Returns the quants with signs, as indices into [`QuantBlock::CODEBOOK`], in row order.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut unpacked = [0; SUPERBLOCK_LEN];
        for (i, out) in unpacked.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let high = usize::from(self.high_bits[i / 8] >> (i % 8) & 1);
            let quants = quants_of(GRID[usize::from(self.fours[i]) | high << 8]);
            for (j, (out, quant)) in out.iter_mut().zip(quants).enumerate() {
                let is_negative = self.signs[i / 2] >> (4 * (i % 2) + j) & 1 == 1;
                *out = if is_negative { 7 - quant } else { 8 + quant };
            }
        }
        unpacked
    }

    /// Encodes values like the reference, including its bug: a group of zeros takes no place, so the groups
    /// after it are stored one too early. `weights` returns the error weights of a group.
    ///
    /// Source: ggml-org/llama.cpp, `ggml/src/ggml-quants.c` (`quantize_row_iq3_s_impl`).
    fn encode(values: &[f32], weights: impl Fn(usize, &[f32; 32]) -> [f32; 32]) -> Self {
        const SEARCH: Search = Search {
            step: 0.2,
            n_steps: 9,
            refit: Refit::AllIfOneOff,
        };
        let mut block = Self::zeroed();
        let mut scales = [0.0; 8];
        let mut place = 0;
        for (g, values) in values.as_chunks::<32>().0.iter().enumerate() {
            let weights: [[f32; 4]; 8] = bytemuck::cast(weights(g, values));
            let values: [[f32; 8]; 4] = bytemuck::cast(*values);
            let split = values.map(|eight| split_signs(&eight));
            let magnitudes: [[f32; 4]; 8] = bytemuck::cast(split.map(|(magnitudes, _)| magnitudes));
            let max = greatest(magnitudes.as_flattened());
            if max == 0.0 {
                continue;
            }
            let (scale, points) = NEARBY.search(&SEARCH, &magnitudes, &weights, max, max / 15.0);
            let flip = if scale < 0.0 { 0xff } else { 0 };
            for (k, point) in points.into_iter().enumerate() {
                block.fours[8 * place + k] = point as u8;
                block.high_bits[g] |= ((point >> 8) << k) as u8;
            }
            for (signs, (_, found)) in block.signs[4 * place..].iter_mut().zip(split) {
                *signs = found ^ flip;
            }
            scales[g] = scale.abs();
            place += 1;
        }
        let max_scale = greatest(&scales);
        if max_scale == 0.0 {
            return Self::zeroed();
        }
        let scale = max_scale / 31.0;
        block.scale = F16Bits::from_f32(scale * 1.033);
        for (g, group_scale) in scales.into_iter().enumerate() {
            block.group_scales[g / 2] |= stored_scale(1.0 / scale, group_scale, 15) << (4 * (g % 2));
        }
        block
    }
}

impl Block for BlockIQ3S {
    const TYPE: TensorType = TensorType::IQ3_S;
    const LEN: usize = SUPERBLOCK_LEN;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let (quants, scales) = (self.unpack(), self.unpack_scales());
        for (g, (out, quants)) in out.chunks_exact_mut(32).zip(quants.chunks_exact(32)).enumerate() {
            let scale = self.scale.to_f32() * f32::from(scales[g]);
            for (out, &quant) in out.iter_mut().zip(quants) {
                *out = scale * f32::from(CODEBOOK[usize::from(quant)]);
            }
        }
    }

    fn quantize(values: &[f32]) -> Self {
        Self::encode(values, |_, group| squares(group))
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let mean_square = 2.0 * sum_of_squares(values) / 256.0;
        Self::encode(values, |g, group| importance.weights(g, group, mean_square))
    }
}

impl QuantBlock for BlockIQ3S {
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

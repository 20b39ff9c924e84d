//! IQ1_S: 256 weights of three levels, in eights that point into a grid, with a 3-bit scale and a shift of
//! the levels per 32 weights; 1.5625 bits per weight.
//!
//! A weight of group `g` is `scale * (2 * scales[g] + 1) * (quant - 1 + shift)`, with a shift of an eighth up
//! or down. The grid has 2,048 of the 6,561 eights. IQ1_M differs only in the positions of its bits, and in
//! the number of weights that share a scale and a shift. The parts of both formats have one byte per 16
//! weights, as in IQ1_M.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::eights::{SET_WORDS, digits_of, eights_of};
use super::grid_search::{Grid, greatest, stored_scale};
use crate::block::sum_of_squares;
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// The grid as a set; see [`eights_of`].
///
/// Source: ggml-org/llama.cpp, `ggml/src/ggml-common.h` (`iq1s_grid`).
#[rustfmt::skip]
const GRID_SET: [u64; SET_WORDS] = [
    0x5142_02a0_8514_2555, 0xa28a_2086_a831_4508, 0x1450_8514_202a_081a, 0xa005_1525_4544_2082,
    0x8208_0018_8820_8202, 0x0aaa_bb88_a02a_03a0, 0xaa0a_0022_000b_aa90, 0x4508_5140_08a0_828c,
    0x0851_4214_5080_8821, 0x2a80_08a0_9808_308a, 0x4248_2085_1421_4508, 0x20a0_c22c_0145_0855,
    0xa2aa_a824_2a00_268a, 0x0028_2808_08af_e208, 0xa820_28aa_2842_02a0, 0xa8ba_b908_9b0a_2080,
    0x3aaa_aea2_89ae_ca20, 0xb80e_82bb_baea_eb7c, 0x2202_920e_d3ca_ba22, 0x820a_ba8a_a820_2200,
    0x3ba2_e04a_2a00_0802, 0x8140_8100_a22b_2022, 0x8514_0122_0828_8aaa, 0x5421_4509_2082_1550,
    0x203a_a823_0208_a085, 0xa208_5142_5420_8284, 0x082a_0214_5095_0820, 0x2002_48a0_8082_a8b8,
    0xab28_02a2_68a2_8208, 0x0830_8208_2085_082a, 0xa085_1421_4500_4045, 0x8229_0145_0051_4200,
    0x1430_a108_2a82_8a00, 0x2145_0828_8214_5005, 0x2aaa_2002_0220_8514, 0xa828_ae8a_b112_2000,
    0x0a82_0070_a8aa_a1ba, 0x8200_8402_2228_0208, 0xaa2a_b0ea_a080_4800, 0xa7da_ea22_ba8b_20c2,
    0xaa2a_b092_a86e_8b8b, 0x4820_2a0c_448a_8b72, 0x20aa_082a_8a28_4084, 0xa09a_afa2_22a2_ccc8,
    0xa82a_0002_0002_a8e8, 0xa2a2_8ba0_8020_0088, 0xba0a_3282_80a0_ba28, 0x2ba0_a2eb_feba_b8be,
    0x00a2_ea28_0a8a_08a2, 0xdeea_a4fa_0c02_32a1, 0xeb7e_be8d_2ea8_2bef, 0xdeba_7de6_bf7f_f7fa,
    0x12fa_26bf_ff27_fb69, 0x0ebe_aa10_228a_e1e9, 0xae82_0ba8_b208_aa84, 0x6204_8083_e924_baff,
    0x002b_a40a_a8f2_682c, 0x0012_aae2_0808_2a02, 0x82c9_20a6_0a2a_8202, 0x8c00_a200_2882_9089,
    0x6c00_0808_8200_1380, 0x8abe_a602_bbaa_aa8a, 0xd02e_976b_8002_caa0, 0xdeaa_2e10_8210_e9b2,
    0x820a_0004_a5d1_1528, 0x20a1_0108_2082_8a00, 0xa084_3222_ba39_aa82, 0x0262_a28a_0018_8009,
    0xac21_4500_5144_1481, 0x20aa_0851_4214_5082, 0x4508_2a12_0a87_aa28, 0x0851_4208_a005_1421,
    0x22a2_40a0_0220_0145, 0x8a6a_08a2_0800_8800, 0x0a20_0080_aaaa_b86e, 0x5044_0821_22c8_e282,
    0x8515_208a_0951_4214, 0x2a2a_aa08_0a86_1450, 0x2145_0851_420a_0080, 0xe208_5142_1450_00a8,
    0x082a_8218_0a82_8820, 0x0a02_8bb0_8aaa_a2aa, 0x0aaa_8082_2820_aa2a, 0x2202_88a9_0028_0828,
    0xba8a_08b8_280b_bea0, 0xaef8_a4ba_ffae_b24b, 0x30a0_b668_2852_20aa, 0x6a22_0828_020a_80e6,
    0x2baa_aa02_0a20_8062, 0x0808_a2a0_a9a2_eaaa, 0x0e82_0022_8aa0_2010, 0x400a_a085_1421_4500,
    0x4a00_06a9_2145_0851, 0x440d_1000_a508_02aa, 0x0514_2145_0828_8214, 0x0020_f2ac_8282_0800,
    0x20ba_0a28_0aaa_0000, 0x2809_4882_0002_a2ea, 0x0051_454b_1100_14e9, 0x5142_1450_02a8_0145,
    0x400a_2888_0824_8808, 0x02a0_0514_0145_0008, 0x0000_0001_4508_5140,
];

/// The eights of the grid.
pub(super) const GRID: [u16; 2048] = eights_of(&GRID_SET);

/// The grid with the nearby points of all other codes.
pub(super) static NEARBY: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&GRID, 2, 3));

/// The values of the three levels, shifted up and shifted down.
pub(super) const LEVELS: [[f32; 3]; 2] = [[-0.875, 0.125, 1.125], [-1.125, -0.125, 0.875]];

/// Groups with only smaller values count as all zero.
const GROUP_MAX_EPS: f32 = 1e-12;

/// Returns the indices that sort values in ascending order, stably.
pub(super) fn ascending<const N: usize>(values: &[f32; N]) -> [usize; N] {
    let mut order = std::array::from_fn(|i| i);
    order.sort_by(|&a, &b| {
        values[a]
            .partial_cmp(&values[b])
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    order
}

/// Returns the grid points for `levels`, and the scale. `stands_for` has the values of each eight's levels.
/// If some levels are not on the grid, the points with the least error are used and the scale is fitted
/// again.
pub(super) fn to_grid<const K: usize>(
    levels: &[[u8; 8]; K],
    stands_for: &[&[f32; 3]; K],
    values: &[[f32; 8]; K],
    weights: &[[f32; 8]; K],
    scale: f32,
) -> ([u16; K], f32) {
    let found: [(u16, bool); K] = std::array::from_fn(|k| {
        NEARBY.nearest(&levels[k], |i, level| {
            let difference = scale * stands_for[k][usize::from(level)] - values[k][i];
            weights[k][i] * difference * difference
        })
    });
    let places = found.map(|(place, _)| place);
    if found.iter().all(|&(_, is_on_grid)| is_on_grid) {
        return (places, scale);
    }
    let (mut value_quant, mut quant_quant) = (0.0, 0.0);
    for k in 0..K {
        for (i, &level) in NEARBY.point(places[k]).iter().enumerate() {
            let (weight, quant) = (weights[k][i], stands_for[k][usize::from(level)]);
            value_quant += weight * quant * values[k][i];
            quant_quant += weight * quant * quant;
        }
    }
    let is_better = value_quant > 0.0 && quant_quant > 0.0;
    (
        places,
        if is_better {
            value_quant / quant_quant
        } else {
            scale
        },
    )
}

/// The best split of sorted values into the three levels: the first `bounds[0]` get the lowest, those from
/// `bounds[1]` on the highest.
struct Split {
    scale: f32,
    score: f32,
    bounds: [usize; 2],
    /// The index into [`LEVELS`].
    shift: usize,
}

impl Split {
    /// Tries all splits of 32 values.
    fn search(values: &[f32; 32], weights: &[f32; 32], order: &[usize; 32]) -> Option<Self> {
        let (mut sums_x, mut sums_w) = ([0.0_f32; 33], [0.0_f32; 33]);
        for (j, &i) in order.iter().enumerate() {
            sums_x[j + 1] = sums_x[j] + weights[i] * values[i];
            sums_w[j + 1] = sums_w[j] + weights[i];
        }
        let mut best: Option<Self> = None;
        for first in 0..=32 {
            for second in first..=32 {
                let parts = |sums: &[f32; 33]| {
                    [
                        sums[first] - sums[0],
                        sums[second] - sums[first],
                        sums[32] - sums[second],
                    ]
                };
                let (x, w) = (parts(&sums_x), parts(&sums_w));
                for (shift, level) in LEVELS.iter().enumerate() {
                    let value_quant = x[0] * level[0] + x[1] * level[1] + x[2] * level[2];
                    let quant_quant =
                        w[0] * level[0] * level[0] + w[1] * level[1] * level[1] + w[2] * level[2] * level[2];
                    let score = best.as_ref().map_or(f32::MIN, |best| best.score);
                    if quant_quant > 0.0 && value_quant * value_quant > score * quant_quant {
                        let scale = value_quant / quant_quant;
                        best = Some(Self {
                            scale,
                            score: scale * value_quant,
                            bounds: [first, second],
                            shift,
                        });
                    }
                }
            }
        }
        best
    }
}

/// Returns the levels of values in `order`: those before `bounds[0]` are low, those from `bounds[1]` on high.
/// A negative scale swaps low and high.
pub(super) fn levels_of<const N: usize>(order: &[usize; N], bounds: [usize; 2], scale: f32) -> [u8; N] {
    let mut levels = [0; N];
    for (j, &i) in order.iter().enumerate() {
        let level = u8::from(j >= bounds[0]) + u8::from(j >= bounds[1]);
        levels[i] = if scale < 0.0 { 2 - level } else { level };
    }
    levels
}

/// 256 weights of 3 levels, 50 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ1S {
    /// The block scale, which multiplies the groups' scales.
    pub scale: F16Bits,
    /// The low bits of each eight's index in the grid.
    pub eights: [u8; 32],
    /// For each 32 weights: the three high bits of the four indices, the lowest first, the scale in three
    /// bits, and in the highest bit whether levels are shifted down.
    pub groups: [[u8; 2]; 8],
}

const _: () = assert!(size_of::<BlockIQ1S>() == 50 && align_of::<BlockIQ1S>() == 1);

/// Decodes quants with one byte per group of 16: the scale in the low three bits, then one bit per eight for
/// a downward shift.
#[inline(always)]
pub(super) fn dequantize(scale: F16Bits, groups: [u8; 16], quants: &[u8; SUPERBLOCK_LEN], out: &mut [f32]) {
    for (i, (out, quants)) in out.chunks_exact_mut(8).zip(quants.chunks_exact(8)).enumerate() {
        let group = groups[i / 2];
        let scale = scale.to_f32() * f32::from(2 * (group & 7) + 1);
        let shift = if group >> (3 + i % 2) & 1 == 1 {
            -0.125
        } else {
            0.125
        };
        for (out, &quant) in out.iter_mut().zip(quants) {
            *out = scale * (f32::from(quant) - 1.0 + shift);
        }
    }
}

impl BlockIQ1S {
    /// Returns one byte per 16 weights: the scale in the low three bits, then one bit per eight for a
    /// downward shift.
    #[inline(always)]
    pub fn group_bytes(&self) -> [u8; 16] {
        std::array::from_fn(|i| {
            let high = self.groups[i / 2][1];
            (high >> 4 & 7) | ((high >> 7) * 0x18)
        })
    }

    /// Returns the quants in row order, in 0..=2.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut unpacked = [0; SUPERBLOCK_LEN];
        for (i, out) in unpacked.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = usize::from(u16::from_le_bytes(self.groups[i / 4]) >> (3 * (i % 4)) & 7);
            *out = digits_of(GRID[usize::from(self.eights[i]) | high << 8]);
        }
        unpacked
    }
}

impl Block for BlockIQ1S {
    const TYPE: TensorType = TensorType::IQ1_S;
    const LEN: usize = SUPERBLOCK_LEN;
    const HAS_ENCODER: bool = false;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        dequantize(self.scale, self.group_bytes(), &self.unpack(), out);
    }

    /// Source: ggml-org/llama.cpp, `ggml/src/ggml-quants.c` (`quantize_row_iq1_s_impl`).
    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let mean_square = 2.0 * sum_of_squares(values) / 256.0;
        let mut block = Self::zeroed();
        let (mut scales, mut shifts) = ([0.0; 8], [0; 8]);
        for (g, values) in values.as_chunks::<32>().0.iter().enumerate() {
            let weights = importance.weights(g, values, mean_square);
            if greatest(&values.map(f32::abs)) < GROUP_MAX_EPS {
                continue;
            }
            let order = ascending(values);
            let Some(best) = Split::search(values, &weights, &order) else {
                continue;
            };
            let levels: [[u8; 8]; 4] = bytemuck::cast(levels_of(&order, best.bounds, best.scale));
            shifts[g] = if best.scale < 0.0 {
                1 - best.shift
            } else {
                best.shift
            };
            let (places, scale) = to_grid(
                &levels,
                &[&LEVELS[shifts[g]]; 4],
                &bytemuck::cast(*values),
                &bytemuck::cast(weights),
                best.scale.abs(),
            );
            let mut high_bits = 0;
            for (k, place) in places.into_iter().enumerate() {
                block.eights[4 * g + k] = place as u8;
                high_bits |= place >> 8 << (3 * k);
            }
            block.groups[g] = high_bits.to_le_bytes();
            scales[g] = scale;
        }
        let max_scale = greatest(&scales);
        if max_scale == 0.0 {
            return block;
        }
        let scale = max_scale / 15.0;
        block.scale = F16Bits::from_f32(scale * 1.125);
        for g in 0..8 {
            let stored = stored_scale(1.0 / scale, scales[g], 7) | (shifts[g] as u8) << 3;
            block.groups[g][1] |= stored << 4;
        }
        block
    }
}

impl QuantBlock for BlockIQ1S {
    const QUANT_BITS: u32 = 2;
    const GROUP_SCALE_BYTES: usize = 2;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        BlockParts::with_group_scales(self.unpack(), &self.group_bytes(), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

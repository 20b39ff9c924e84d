//! IQ1_M: IQ1_S with a scale per 16 weights and a shift per 8; 1.75 bits per weight.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::eights::digits_of;
use super::grid_search::{greatest, stored_scale};
use super::iq1_s::{GRID, LEVELS, NEARBY, ascending, dequantize, levels_of, to_grid};
use crate::block::sum_of_squares;
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 256 weights of 3 levels, 56 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ1M {
    /// The low bits of each eight's index in the grid.
    pub eights: [u8; 32],
    /// For each 16 weights, two halves, one per eight: the three high bits of its index, and a bit for a
    /// downward shift.
    pub high_bits: [u8; 16],
    /// Words of four 3-bit scales, the lowest first. Their highest four bits form the half-precision block
    /// scale that multiplies them, its lowest bits in the first word.
    pub scales: [[u8; 2]; 4],
}

const _: () = assert!(size_of::<BlockIQ1M>() == 56 && align_of::<BlockIQ1M>() == 1);

/// Groups with only smaller values count as all zero.
const GROUP_MAX_EPS: f32 = 1e-7;

/// The best split of 16 sorted values into three levels, with one shift per eight.
struct Split {
    scale: f32,
    score: f32,
    bounds: [usize; 2],
    /// The index into [`LEVELS`] of each eight.
    shifts: [usize; 2],
}

impl Split {
    /// Tries all splits, using prefix sums of weight and of weight times value.
    ///
    /// Source: ggml-org/llama.cpp, `ggml/src/ggml-quants.c` (`quantize_row_iq1_m_impl`).
    fn search(values: &[f32; 16], weights: &[f32; 16], order: &[usize; 16]) -> Option<Self> {
        // For each eight; levels are 1 apart, so two sums determine a split.
        let (mut sums_x, mut sums_w) = ([[0.0_f32; 17]; 2], [[0.0_f32; 17]; 2]);
        for (j, &i) in order.iter().enumerate() {
            for eight in 0..2 {
                let (x, w) = if i / 8 == eight {
                    (weights[i] * values[i], weights[i])
                } else {
                    (0.0, 0.0)
                };
                sums_x[eight][j + 1] = sums_x[eight][j] + x;
                sums_w[eight][j + 1] = sums_w[eight][j] + w;
            }
        }
        let steps = LEVELS.map(|level| {
            let squares = level.map(|x| x * x);
            [squares[0] - squares[1], squares[1] - squares[2]]
        });
        let mut best: Option<Self> = None;
        for first in 0..=16 {
            for second in first..=16 {
                // Indexed by eight and by shift.
                let (mut value_quant, mut quant_quant) = ([[0.0; 2]; 2], [[0.0; 2]; 2]);
                for eight in 0..2 {
                    let (x, w) = (&sums_x[eight], &sums_w[eight]);
                    let sum = x[first] + x[second];
                    for shift in 0..2 {
                        let high = LEVELS[shift][2];
                        value_quant[eight][shift] = x[16] * high - sum;
                        quant_quant[eight][shift] =
                            w[16] * high * high + w[first] * steps[shift][0] + w[second] * steps[shift][1];
                    }
                }
                for shifts in [[0, 0], [0, 1], [1, 0], [1, 1]] {
                    let value_quant = value_quant[0][shifts[0]] + value_quant[1][shifts[1]];
                    let quant_quant = quant_quant[0][shifts[0]] + quant_quant[1][shifts[1]];
                    let score = best.as_ref().map_or(f32::MIN, |best| best.score);
                    if quant_quant > 0.0 && value_quant * value_quant > score * quant_quant {
                        let scale = value_quant / quant_quant;
                        best = Some(Self {
                            scale,
                            score: scale * value_quant,
                            bounds: [first, second],
                            shifts,
                        });
                    }
                }
            }
        }
        best
    }
}

impl BlockIQ1M {
    /// Returns the block scale, which multiplies the groups' scales.
    #[inline(always)]
    pub fn scale(&self) -> F16Bits {
        let [a, b, c, d] = self.scales.map(|[_, high]| high >> 4);
        F16Bits::from_le_bytes([a | b << 4, c | d << 4])
    }

    /// Returns one byte per 16 weights: the scale in the low three bits, then one bit per eight for a
    /// downward shift.
    #[inline(always)]
    pub fn group_bytes(&self) -> [u8; 16] {
        std::array::from_fn(|i| {
            let scale = u16::from_le_bytes(self.scales[i / 4]) >> (3 * (i % 4)) & 7;
            scale as u8 | self.high_bits[i] & 8 | self.high_bits[i] >> 7 << 4
        })
    }

    /// Returns the quants in row order, in 0..=2.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut unpacked = [0; SUPERBLOCK_LEN];
        for (i, out) in unpacked.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = usize::from(self.high_bits[i / 2] >> (4 * (i % 2)) & 7);
            *out = digits_of(GRID[usize::from(self.eights[i]) | high << 8]);
        }
        unpacked
    }
}

impl Block for BlockIQ1M {
    const TYPE: TensorType = TensorType::IQ1_M;
    const LEN: usize = SUPERBLOCK_LEN;
    const HAS_ENCODER: bool = false;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        dequantize(self.scale(), self.group_bytes(), &self.unpack(), out);
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let mean_square = 2.0 * sum_of_squares(values) / 256.0;
        let (groups, _) = values.as_chunks::<16>();
        let mut block = Self::zeroed();
        let (mut scales, mut shifts, mut places) = ([0.0; 16], [[0; 2]; 16], [[0_u16; 2]; 16]);
        for (g, values) in groups.iter().enumerate() {
            let weights = importance.weights(g, values, mean_square);
            if greatest(&values.map(f32::abs)) < GROUP_MAX_EPS {
                continue;
            }
            let order = ascending(values);
            let Some(best) = Split::search(values, &weights, &order) else {
                continue;
            };
            let levels: [[u8; 8]; 2] = bytemuck::cast(levels_of(&order, best.bounds, best.scale));
            shifts[g] = best
                .shifts
                .map(|shift| if best.scale < 0.0 { 1 - shift } else { shift });
            (places[g], scales[g]) = to_grid(
                &levels,
                &shifts[g].map(|shift| &LEVELS[shift]),
                &bytemuck::cast(*values),
                &bytemuck::cast(weights),
                best.scale.abs(),
            );
            for (k, place) in places[g].into_iter().enumerate() {
                block.eights[2 * g + k] = place as u8;
                block.high_bits[g] |= ((place >> 8) << (4 * k)) as u8;
            }
        }
        let max_scale = greatest(&scales);
        if max_scale == 0.0 {
            return block;
        }
        let mut scale = max_scale / 15.0;
        let inverse = 1.0 / scale;
        let (mut value_quant, mut quant_quant) = (0.0, 0.0);
        for (g, values) in groups.iter().enumerate() {
            let stored = stored_scale(inverse, scales[g], 7);
            let word = u16::from_le_bytes(block.scales[g / 4]) | u16::from(stored) << (3 * (g % 4));
            block.scales[g / 4] = word.to_le_bytes();
            block.high_bits[g] |= (shifts[g][0] << 3 | shifts[g][1] << 7) as u8;
            let weights = importance.weights(g, values, mean_square);
            for (i, (x, weight)) in values.iter().zip(weights).enumerate() {
                let level = NEARBY.point(places[g][i / 8])[i % 8];
                let quant = LEVELS[shifts[g][i / 8]][usize::from(level)] * f32::from(2 * stored + 1);
                value_quant += weight * quant * x;
                quant_quant += weight * quant * quant;
            }
        }
        if quant_quant > 0.0 {
            scale = value_quant / quant_quant;
        }
        block.set_scales(scale * 1.1125, 0.0);
        block
    }
}

impl QuantBlock for BlockIQ1M {
    const QUANT_BITS: u32 = 2;
    const GROUP_SCALE_BYTES: usize = 2;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        BlockParts::with_group_scales(self.unpack(), &self.group_bytes(), &self.scale().to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        let bits = F16Bits::from_f32(scale).to_bits();
        for (i, [_, high]) in self.scales.iter_mut().enumerate() {
            *high = *high & 0xf | ((bits >> (4 * i)) as u8) << 4;
        }
    }
}

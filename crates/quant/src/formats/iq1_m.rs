//! IQ1_M: IQ1_S with a scale for each 16 weights and a shift for each 8; 1.75 bits a weight.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::eights::digits_of;
use super::iq1_s::{GRID, dequantize};
use crate::{Block, BlockParts, F16Bits, QuantBlock};

/// 256 weights of 3 levels, 56 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ1M {
    /// The low bits of each eight's place in the grid.
    pub eights: [u8; 32],
    /// Of each 16 weights the three high bits of an eight's place and in a fourth whether it is shifted down, then those of
    /// the next.
    pub high_bits: [u8; 16],
    /// Words of four 3-bit scales, the lowest first. Their highest four bits are the half-precision number that the scales are
    /// multiples of, its lowest bits in the first word.
    pub scales: [[u8; 2]; 4],
}

const _: () = assert!(size_of::<BlockIQ1M>() == 56 && align_of::<BlockIQ1M>() == 1);

impl BlockIQ1M {
    /// What the groups' scales are multiples of.
    #[inline(always)]
    pub fn scale(&self) -> F16Bits {
        let [a, b, c, d] = self.scales.map(|[_, high]| high >> 4);
        F16Bits::from_le_bytes([a | b << 4, c | d << 4])
    }

    /// Scale and shifts of each 16 weights: the scale in the low three bits, then for each eight whether it is shifted down.
    #[inline(always)]
    pub fn group_bytes(&self) -> [u8; 16] {
        std::array::from_fn(|i| {
            let scale = u16::from_le_bytes(self.scales[i / 4]) >> (3 * (i % 4)) & 7;
            scale as u8 | self.high_bits[i] & 8 | self.high_bits[i] >> 7 << 4
        })
    }

    /// The quants in row order, in 0..=2.
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
}

impl QuantBlock for BlockIQ1M {
    const QUANT_BITS: u32 = 2;
    const GROUP_SCALE_BYTES: usize = 2;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        BlockParts::with_group_scales(self.unpack(), self.group_bytes(), &self.scale().to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        let bits = F16Bits::from_f32(scale).to_bits();
        for (i, [_, high]) in self.scales.iter_mut().enumerate() {
            *high = *high & 0xf | ((bits >> (4 * i)) as u8) << 4;
        }
    }
}

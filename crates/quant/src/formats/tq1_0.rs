//! TQ1_0: 256 ternary weights, five in a byte, and one scale; 1.6875 bits a weight.
//!
//! A weight is `scale * (quant - 1)`. A byte is a fraction of 256: its first quant is the first digit in base
//! 3, and so on.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::SUPERBLOCK_LEN;
use super::tq2_0::quantize_ternary;
use crate::{Block, BlockParts, F16Bits, QuantBlock};

/// 256 weights, five in a byte, 54 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockTQ1_0 {
    /// Digit `k` of byte `i` is quant `32 * k + i` for the first 32 bytes (160 quants), and quant
    /// `160 + 16 * k + i` for the last 16.
    pub fives: [u8; 48],
    /// Digit `k` of byte `i` is quant `240 + 4 * k + i`.
    pub fours: [u8; 4],
    /// The scale.
    pub scale: F16Bits,
}

const _: () = assert!(size_of::<BlockTQ1_0>() == 54 && align_of::<BlockTQ1_0>() == 1);

/// The layout of bytes and digits: first byte, number of bytes, first quant, number of digits.
const RUNS: [(usize, usize, usize, usize); 3] = [(0, 32, 0, 5), (32, 16, 160, 5), (48, 4, 240, 4)];

/// Powers of 3, which move a digit to the front.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

impl BlockTQ1_0 {
    /// Returns the quants in row order, in 0..=2.
    #[inline(always)]
    pub fn unpack(&self) -> [u8; SUPERBLOCK_LEN] {
        let bytes = bytemuck::bytes_of(self);
        let mut quants = [0; SUPERBLOCK_LEN];
        for (first_byte, n_bytes, first_quant, n_digits) in RUNS {
            for k in 0..n_digits {
                let out = &mut quants[first_quant + k * n_bytes..][..n_bytes];
                for (quant, byte) in out.iter_mut().zip(&bytes[first_byte..]) {
                    *quant = ((u16::from(byte.wrapping_mul(POWERS[k])) * 3) >> 8) as u8;
                }
            }
        }
        quants
    }
}

impl Block for BlockTQ1_0 {
    const TYPE: TensorType = TensorType::TQ1_0;
    const LEN: usize = SUPERBLOCK_LEN;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (out, quant) in out.iter_mut().zip(self.unpack()) {
            *out = scale * (f32::from(quant) - 1.0);
        }
    }

    fn quantize(values: &[f32]) -> Self {
        let (scale, quants) = quantize_ternary::<SUPERBLOCK_LEN>(values);
        let mut block = Self::zeroed();
        let bytes = bytemuck::bytes_of_mut(&mut block);
        for (first_byte, n_bytes, first_quant, n_digits) in RUNS {
            for i in 0..n_bytes {
                let digits = (0..n_digits).map(|k| u16::from(quants[first_quant + k * n_bytes + i]));
                let number = digits
                    .zip(POWERS.iter().rev())
                    .map(|(digit, &power)| digit * u16::from(power));
                // Rounded up, so that multiplying restores the digits.
                bytes[first_byte + i] = (number.sum::<u16>() * 256).div_ceil(243) as u8;
            }
        }
        block.scale = F16Bits::from_f32(scale);
        block
    }
}

impl QuantBlock for BlockTQ1_0 {
    const QUANT_BITS: u32 = 2;
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; SUPERBLOCK_LEN];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; SUPERBLOCK_LEN]> {
        BlockParts::new(self.unpack(), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

//! Q8_K: 256 signed bytes, a 32-bit scale and sums of 16, for activations against the K-formats.
//!
//! The sums let a kernel subtract a weight group's minimum or offset without touching the activations again.

use bytemuck::{Pod, Zeroable};

use super::SUPERBLOCK_LEN;
use crate::scale_search::nearest_int;
use crate::{ActivationBlock, ActivationFormat};

/// 256 activations of 8 bits, 292 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8K {
    /// The scale, a 32-bit float.
    pub scale: [u8; 4],
    /// The quants in row order, in -127..=127.
    pub quants: [i8; SUPERBLOCK_LEN],
    /// The sum of each 16 quants, 16-bit integers.
    pub sums: [[u8; 2]; 16],
}

const _: () = assert!(size_of::<BlockQ8K>() == 292 && align_of::<BlockQ8K>() == 1);

impl BlockQ8K {
    /// The scale.
    #[inline]
    pub const fn scale(&self) -> f32 {
        f32::from_le_bytes(self.scale)
    }

    /// The sum of quants `16 * i .. 16 * i + 16`.
    #[inline]
    pub const fn sum(&self, i: usize) -> i32 {
        i16::from_le_bytes(self.sums[i]) as i32
    }
}

impl ActivationBlock for BlockQ8K {
    const FORMAT: ActivationFormat = ActivationFormat::Q8K;
    const LEN: usize = SUPERBLOCK_LEN;

    /// The greatest magnitude becomes -127, the first of equals deciding the sign. A block of zeros has scale 0.
    #[inline(always)]
    fn encode(values: &[f32]) -> Self {
        // Without their signs, floats order like their bit patterns.
        let magnitude = values.iter().fold(0, |max, x| max.max(x.to_bits() & 0x7fff_ffff));
        let is_extreme = |x: &&f32| x.to_bits() & 0x7fff_ffff == magnitude;
        let extreme = values.iter().find(is_extreme).copied().unwrap_or_default();
        if extreme == 0.0 {
            return Self::zeroed();
        }
        let inverse = -127.0 / extreme;
        let mut quants = [0; SUPERBLOCK_LEN];
        for (quant, x) in quants.iter_mut().zip(values) {
            *quant = nearest_int(inverse * x).min(127) as i8;
        }
        let mut sums = [[0; 2]; 16];
        for (sum, group) in sums.iter_mut().zip(quants.chunks_exact(16)) {
            *sum = group.iter().map(|&q| i16::from(q)).sum::<i16>().to_le_bytes();
        }
        Self {
            scale: (1.0 / inverse).to_le_bytes(),
            quants,
            sums,
        }
    }
}

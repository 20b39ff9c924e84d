//! Q8_1: Q8_0 with the sum of the block beside it, for activations against weights that have a minimum.
//!
//! A weight `scale * quant + min` times an activation splits into an integer dot product and `min * sum`.

use bytemuck::{Pod, Zeroable};

use super::q8_0::quantize_32;
use crate::{ActivationBlock, ActivationFormat, F16Bits};

/// 32 activations of 8 bits and their sum, 36 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_1 {
    /// The scale.
    pub scale: F16Bits,
    /// The scale times the sum of the quants.
    pub sum: F16Bits,
    /// The quants in row order, in -127..=127.
    pub quants: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_1>() == 36 && align_of::<BlockQ8_1>() == 1);

impl ActivationBlock for BlockQ8_1 {
    const FORMAT: ActivationFormat = ActivationFormat::Q8_1;
    const LEN: usize = 32;

    #[inline(always)]
    fn encode(values: &[f32]) -> Self {
        let (scale, quants) = quantize_32(values);
        let sum: i32 = quants.iter().map(|&q| i32::from(q)).sum();
        Self {
            scale: F16Bits::from_f32(scale),
            sum: F16Bits::from_f32(sum as f32 * scale),
            quants,
        }
    }
}

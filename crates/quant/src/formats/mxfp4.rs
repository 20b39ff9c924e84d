//! MXFP4: 32 weights of 4-bit floats and a shared power of two; 4.25 bits a weight.
//!
//! A weight is `2^(exponent - 128) * CODEBOOK[quant]`: the OCP microscaling format, with its values doubled so
//! that they are integers, and the scale halved in turn.
//!
//! Source: OCP Microscaling Formats (MX) v1.0, E2M1 elements and E8M0 scales.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::iq4_nl::look_up;
use super::q4_0::{pack_4_bits, unpack_4_bits};
use crate::scale_search::greatest_magnitude;
use crate::{Block, BlockParts, QuantBlock};

/// Twice the values of the 4-bit floats (one sign, two exponent and one mantissa bit).
pub(super) const CODEBOOK: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 32 weights of 4 bits, 17 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockMXFP4 {
    /// The exponent of the scale, biased by 127.
    pub exponent: u8,
    /// Byte `i` holds quant `i` in its low half and quant `i + 16` in its high half.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<BlockMXFP4>() == 17 && align_of::<BlockMXFP4>() == 1);

/// Returns the quant nearest to a value. Among equally near ones it is the first: the smaller magnitude, and
/// plus zero.
pub(super) fn nearest(x: f32, scale: f32) -> u8 {
    let mut best = (0, x.abs());
    for (quant, &value) in CODEBOOK.iter().enumerate().skip(1) {
        let error = (f32::from(value) * scale - x).abs();
        if error < best.1 {
            best = (quant as u8, error);
        }
    }
    best.0
}

impl BlockMXFP4 {
    /// Returns the codebook values in row order.
    #[inline(always)]
    pub fn unpack(&self) -> [i8; 32] {
        look_up(&CODEBOOK, &self.quants)
    }

    /// Returns half the block's scale: `2^(exponent - 128)`, for the doubled values of the codebook.
    #[inline(always)]
    pub const fn half_scale(&self) -> f32 {
        // The two smallest are subnormal.
        f32::from_bits(match self.exponent {
            0 => 0x0020_0000,
            1 => 0x0040_0000,
            exponent => (exponent as u32 - 1) << 23,
        })
    }
}

impl Block for BlockMXFP4 {
    const TYPE: TensorType = TensorType::MXFP4;
    const LEN: usize = 32;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.half_scale();
        for (out, value) in out.iter_mut().zip(self.unpack()) {
            *out = f32::from(value) * scale;
        }
    }

    fn quantize(values: &[f32]) -> Self {
        let (magnitude, _) = greatest_magnitude(values);
        let mut block = Self::zeroed();
        if magnitude > 0.0 {
            block.exponent = (magnitude.log2().floor() - 2.0 + 127.0) as u8;
        }
        let scale = block.half_scale();
        block.quants = pack_4_bits(&std::array::from_fn(|i| nearest(values[i], scale)));
        block
    }
}

impl QuantBlock for BlockMXFP4 {
    const QUANT_BITS: u32 = 4;
    const CODEBOOK: Option<[i8; 16]> = Some(CODEBOOK);
    const HEADER_BYTES: usize = 1;
    type Quants = [u8; 32];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; 32]> {
        BlockParts::new(unpack_4_bits(&self.quants), &[self.exponent])
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        // The codebook has twice the values.
        self.exponent = ((2.0 * scale.abs()).log2().round() + 127.0) as u8;
    }
}

//! IQ4_NL: 32 weights of 4 bits that index a fixed codebook, and one scale; 4.5 bits a weight.
//!
//! A weight is `scale * CODEBOOK[quant]`. The codebook is denser around zero, where weights are.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::iq4_codebook::{CODEBOOK, nearest_quant};
use super::q4_0::{pack_4_bits, unpack_4_bits};
use crate::block::sum_of_squares;
use crate::scale_search::{GROUP_MAX_EPS, greatest_magnitude, squares};
use crate::{Block, BlockParts, F16Bits, Importance, QuantBlock};

/// 32 weights of 4 bits, 18 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ4NL {
    /// The scale.
    pub scale: F16Bits,
    /// Byte `i` holds quant `i` in its low half and quant `i + 16` in its high half.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<BlockIQ4NL>() == 18 && align_of::<BlockIQ4NL>() == 1);

/// Looks 32 quants up in a codebook.
#[inline(always)]
pub(super) fn look_up(codebook: &[i8; 16], quants: &[u8; 16]) -> [i8; 32] {
    unpack_4_bits(quants).map(|quant| codebook[usize::from(quant)])
}

/// Finds the scale of a group of 32: the best of 16 around the initial one.
///
/// Source: ggml-org/llama.cpp, `ggml/src/ggml-quants.c` (`quantize_row_iq4_nl_impl`).
pub(super) fn search_scale(values: &[f32; 32], weights: &[f32; 32]) -> f32 {
    let (magnitude, extreme) = greatest_magnitude(values);
    if magnitude < GROUP_MAX_EPS {
        return 0.0;
    }
    let fit = |inverse: f32| {
        let (mut value_quant, mut quant_quant) = (0.0, 0.0);
        for (&x, &weight) in values.iter().zip(weights) {
            let quant = f32::from(CODEBOOK[usize::from(nearest_quant(inverse * x))]);
            value_quant += weight * quant * x;
            quant_quant += weight * quant * quant;
        }
        (value_quant, quant_quant)
    };
    let least = f32::from(CODEBOOK[0]);
    let (value_quant, quant_quant) = fit(1.0 / (-extreme / least));
    let mut scale = if quant_quant > 0.0 {
        value_quant / quant_quant
    } else {
        0.0
    };
    let mut best = scale * value_quant;
    for step in -7..=7 {
        let (value_quant, quant_quant) = fit((step as f32 + least) / extreme);
        if quant_quant > 0.0 && value_quant * value_quant > best * quant_quant {
            scale = value_quant / quant_quant;
            best = scale * value_quant;
        }
    }
    scale
}

impl BlockIQ4NL {
    /// Returns the codebook values in row order.
    #[inline(always)]
    pub fn unpack(&self) -> [i8; 32] {
        look_up(&CODEBOOK, &self.quants)
    }

    fn encode(values: &[f32; 32], weights: &[f32; 32]) -> Self {
        let scale = search_scale(values, weights);
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        Self {
            scale: F16Bits::from_f32(scale),
            quants: pack_4_bits(&values.map(|x| nearest_quant(inverse * x))),
        }
    }
}

impl Block for BlockIQ4NL {
    const TYPE: TensorType = TensorType::IQ4_NL;
    const LEN: usize = 32;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (out, value) in out.iter_mut().zip(self.unpack()) {
            *out = scale * f32::from(value);
        }
    }

    /// Encodes as ggml's `ggml_quantize_chunk` does; its `quantize_row_iq4_nl_ref` searches less.
    fn quantize(values: &[f32]) -> Self {
        let values: &[f32; 32] = values.try_into().expect("a block has 32 values");
        Self::encode(values, &squares(values))
    }

    fn quantize_weighted(values: &[f32], importance: &Importance<'_>) -> Self {
        let values: &[f32; 32] = values.try_into().expect("a block has 32 values");
        let mean_square = sum_of_squares(values) * (2.0 / 32.0);
        Self::encode(values, &importance.weights(0, values, mean_square))
    }
}

impl QuantBlock for BlockIQ4NL {
    const QUANT_BITS: u32 = 4;
    const CODEBOOK: Option<[i8; 16]> = Some(CODEBOOK);
    const HEADER_BYTES: usize = 2;
    type Quants = [u8; 32];

    #[inline(always)]
    fn parts(&self) -> BlockParts<[u8; 32]> {
        BlockParts::new(unpack_4_bits(&self.quants), &self.scale.to_le_bytes())
    }

    fn set_scales(&mut self, scale: f32, _: f32) {
        self.scale = F16Bits::from_f32(scale);
    }
}

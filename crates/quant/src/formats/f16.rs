//! F16: half-precision floats. A block is one value.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use crate::{Block, F16Bits};

/// One IEEE 754 binary16 number, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct BlockF16(pub F16Bits);

const _: () = assert!(size_of::<BlockF16>() == 2 && align_of::<BlockF16>() == 1);

impl Block for BlockF16 {
    const TYPE: TensorType = TensorType::F16;
    const LEN: usize = 1;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.0.to_f32();
    }

    fn quantize(values: &[f32]) -> Self {
        Self(F16Bits::from_f32(values[0]))
    }
}

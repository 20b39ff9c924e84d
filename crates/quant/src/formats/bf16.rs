//! BF16: the upper half of a 32-bit float. A block is one value.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use crate::Block;

/// One bfloat16 number, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct BlockBF16([u8; 2]);

const _: () = assert!(size_of::<BlockBF16>() == 2 && align_of::<BlockBF16>() == 1);

impl BlockBF16 {
    /// Returns the value, exactly.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        f32::from_bits((u16::from_le_bytes(self.0) as u32) << 16)
    }
}

impl Block for BlockBF16 {
    const TYPE: TensorType = TensorType::BF16;
    const LEN: usize = 1;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.to_f32();
    }

    /// Rounds to nearest, ties to even.
    fn quantize(values: &[f32]) -> Self {
        Self(half::bf16::from_f32(values[0]).to_bits().to_le_bytes())
    }
}

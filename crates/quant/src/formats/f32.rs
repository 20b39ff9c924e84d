//! F32: 32-bit floats. A block is one value.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use crate::Block;

/// One 32-bit float, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct BlockF32([u8; 4]);

const _: () = assert!(size_of::<BlockF32>() == 4 && align_of::<BlockF32>() == 1);

impl BlockF32 {
    /// Returns the value.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        f32::from_le_bytes(self.0)
    }
}

impl Block for BlockF32 {
    const TYPE: TensorType = TensorType::F32;
    const LEN: usize = 1;

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.to_f32();
    }

    fn quantize(values: &[f32]) -> Self {
        Self(values[0].to_le_bytes())
    }
}

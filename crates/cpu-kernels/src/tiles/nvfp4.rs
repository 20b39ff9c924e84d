//! NVFP4: 4-bit floats, as twice their values in a codebook, and an 8-bit float for each 16 columns.

use tokenmill_quant::formats::BlockNVFP4;

use super::{
    SuperShort,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockNVFP4>;

impl NibblesBlock for BlockNVFP4 {
    type Class = SuperShort;
    const BIAS_BITS: Option<u32> = Some(4);
}

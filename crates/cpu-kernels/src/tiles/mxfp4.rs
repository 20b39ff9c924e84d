//! MXFP4: 4-bit floats, as twice their values in a codebook, and a power of two for each 32 columns.

use tokenmill_quant::formats::BlockMXFP4;

use super::{
    Scaled,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockMXFP4>;

impl NibblesBlock for BlockMXFP4 {
    type Class = Scaled;
    const BIAS_BITS: Option<u32> = Some(4);
}

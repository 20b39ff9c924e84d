//! Q4_0: 4 bits and a scale for each 32 columns.

use tokenmill_quant::formats::BlockQ4_0;

use super::{
    Scaled,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockQ4_0>;

impl NibblesBlock for BlockQ4_0 {
    type Class = Scaled;
    const BIAS_BITS: Option<u32> = Some(3);
}

//! Q5_0: 5 bits and a scale for each 32 columns.

use tokenmill_quant::formats::BlockQ5_0;

use super::{
    Scaled,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockQ5_0>;

impl NibblesBlock for BlockQ5_0 {
    type Class = Scaled;
    const BIAS_BITS: Option<u32> = Some(4);
}

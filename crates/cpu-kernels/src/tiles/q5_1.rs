//! Q5_1: 5 bits, a scale and an offset for each 32 columns.

use tokenmill_quant::formats::BlockQ5_1;

use super::{
    Offset,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockQ5_1>;

impl NibblesBlock for BlockQ5_1 {
    type Class = Offset;
    const BIAS_BITS: Option<u32> = None;
}

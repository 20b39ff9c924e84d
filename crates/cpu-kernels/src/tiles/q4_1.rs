//! Q4_1: 4 bits, a scale and an offset for each 32 columns.

use tokenmill_quant::formats::BlockQ4_1;

use super::{
    Offset,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockQ4_1>;

impl NibblesBlock for BlockQ4_1 {
    type Class = Offset;
    const BIAS_BITS: Option<u32> = None;
}

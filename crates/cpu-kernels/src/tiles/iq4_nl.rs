//! IQ4_NL: 4 bits that index a codebook, and a scale for each 32 columns.

use tokenmill_quant::formats::BlockIQ4NL;

use super::{
    ScaledWide,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockIQ4NL>;

impl NibblesBlock for BlockIQ4NL {
    type Class = ScaledWide;
    const BIAS_BITS: Option<u32> = Some(7);
}

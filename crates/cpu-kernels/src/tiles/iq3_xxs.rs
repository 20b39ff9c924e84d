//! IQ3_XXS: 3 bits and a sign as 4 bits that index a codebook, and scales for each 32 and each 256 columns.
//!
//! As with IQ3_S the grid is looked up when a tile is packed: 4.3 bits per weight, 3.1 in the file.

use tokenmill_quant::formats::BlockIQ3XXS;

use super::{
    Scaled,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockIQ3XXS>;

impl NibblesBlock for BlockIQ3XXS {
    type Class = Scaled;
    const BIAS_BITS: Option<u32> = Some(6);
    const FACTOR: f32 = 0.25;
}

//! IQ3_S: 3 bits and a sign as 4 bits that index a codebook, and scales for each 32 and each 256 columns.
//!
//! The grid is looked up when a tile is packed, so that products need no gather. A tile has 4.3 bits per
//! weight, 3.4 in the file, and is multiplied as fast as other formats of 4 bits.

use tokenmill_quant::formats::BlockIQ3S;

use super::{
    Scaled,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockIQ3S>;

impl NibblesBlock for BlockIQ3S {
    type Class = Scaled;
    const BIAS_BITS: Option<u32> = Some(4);
}

//! IQ4_XS: 4 bits that index a codebook, and scales for each 32 and each 256 columns.
//!
//! Activations have a scale for each 32 columns here, as with the other codebooks. Scales take 8 bits, 6 in
//! the file.

use tokenmill_quant::formats::BlockIQ4XS;

use super::{
    ScaledWide,
    nibbles::{Nibbles, NibblesBlock},
};

pub(crate) type Tile = Nibbles<BlockIQ4XS>;

impl NibblesBlock for BlockIQ4XS {
    type Class = ScaledWide;
    const BIAS_BITS: Option<u32> = Some(7);
}

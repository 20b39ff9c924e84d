//! TQ2_0: ternary weights of 2 bits, and a scale for 256 columns.

use tokenmill_quant::formats::BlockTQ2_0;

use super::{
    Scaled,
    codes::{Codes, CodesBlock},
};

pub(crate) type Tile = Codes<BlockTQ2_0>;

impl CodesBlock for BlockTQ2_0 {
    type Kernels = Self;
    type Class = Scaled;
    const BIAS_BITS: u32 = 0;
}

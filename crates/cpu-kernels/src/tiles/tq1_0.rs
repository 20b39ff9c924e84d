//! TQ1_0: ternary weights, in tiles of TQ2_0: 2.1 bits per weight, 1.7 in the file.

use tokenmill_quant::formats::{BlockTQ1_0, BlockTQ2_0};

use super::{
    Scaled,
    codes::{Codes, CodesBlock},
};

pub(crate) type Tile = Codes<BlockTQ1_0>;

impl CodesBlock for BlockTQ1_0 {
    type Kernels = BlockTQ2_0;
    type Class = Scaled;
    const BIAS_BITS: u32 = 0;
}

//! TQ1_0: ternary weights, which tiles hold as those of TQ2_0: 2.1 bits a weight where the file has 1.7.

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

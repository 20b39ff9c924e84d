//! Q2_0: 2 bits and a scale for each 64 columns.

use tokenmill_quant::formats::BlockQ2_0;

use super::{
    Scaled,
    codes::{Codes, CodesBlock},
};

pub(crate) type Tile = Codes<BlockQ2_0>;

impl CodesBlock for BlockQ2_0 {
    type Kernels = Self;
    type Class = Scaled;
    const BIAS_BITS: u32 = 0;
}

//! Q1_0: 1 bit, a sign, and a scale for each 128 columns.

use tokenmill_quant::formats::BlockQ1_0;

use super::{
    Scaled,
    codes::{Codes, CodesBlock},
};

pub(crate) type Tile = Codes<BlockQ1_0>;

impl CodesBlock for BlockQ1_0 {
    type Kernels = Self;
    type Class = Scaled;
    const BIAS_BITS: u32 = 0;
}

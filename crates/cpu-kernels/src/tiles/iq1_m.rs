//! IQ1_M: 3 levels as 2 bits, shifted for each 8 columns, and a scale for each 16: 2.6 bits per weight, 1.8
//! in the file.
//!
//! A value is eight times a level plus or minus one; the third bit is the sign.

use tokenmill_quant::formats::BlockIQ1M;

use super::{
    SuperShort,
    codes::{Codes, CodesBlock, Groups},
};

pub(crate) type Tile = Codes<BlockIQ1M>;

impl CodesBlock for BlockIQ1M {
    type Kernels = Self;
    type Class = SuperShort;
    const BIAS_BITS: u32 = 4;
    const GROUPS: Groups = Groups::Shifts;
    const FACTOR: f32 = 0.125;
    const TABLE: Option<[u8; 16]> = Some([9, 17, 25, 0, 7, 15, 23, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

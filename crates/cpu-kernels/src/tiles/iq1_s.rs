//! IQ1_S: IQ1_M with scales and shifts for each 32 columns; its tiles are the same, 2.6 bits per weight, 1.6
//! in the file.

use tokenmill_quant::formats::{BlockIQ1M, BlockIQ1S};

use super::{
    SuperShort,
    codes::{Codes, CodesBlock, Groups},
};

pub(crate) type Tile = Codes<BlockIQ1S>;

impl CodesBlock for BlockIQ1S {
    type Kernels = BlockIQ1M;
    type Class = SuperShort;
    const BIAS_BITS: u32 = BlockIQ1M::BIAS_BITS;
    const GROUPS: Groups = BlockIQ1M::GROUPS;
    const FACTOR: f32 = BlockIQ1M::FACTOR;
    const TABLE: Option<[u8; 16]> = BlockIQ1M::TABLE;
}

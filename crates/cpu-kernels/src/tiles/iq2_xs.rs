//! IQ2_XS: IQ2_XXS with a scale for each 16 columns: 3.3 bits per weight, 2.3 in the file.

use tokenmill_quant::formats::{BlockIQ2XS, BlockIQ2XXS};

use super::{
    SuperShort,
    codes::{Codes, CodesBlock, Groups},
};

pub(crate) type Tile = Codes<BlockIQ2XS>;

impl CodesBlock for BlockIQ2XS {
    type Kernels = BlockIQ2XXS;
    type Class = SuperShort;
    const BIAS_BITS: u32 = BlockIQ2XXS::BIAS_BITS;
    const GROUPS: Groups = BlockIQ2XXS::GROUPS;
    const FACTOR: f32 = BlockIQ2XXS::FACTOR;
    const TABLE: Option<[u8; 16]> = BlockIQ2XXS::TABLE;
}

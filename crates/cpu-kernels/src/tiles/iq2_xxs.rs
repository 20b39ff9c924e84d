//! IQ2_XXS: 3 magnitudes and a sign as 3 bits that index a codebook, and a scale for each 32 columns.
//!
//! Its tiles are those of IQ2_XS, with each scale twice: 3.3 bits per weight, 2.1 in the file.

use tokenmill_quant::{QuantBlock as _, formats::BlockIQ2XXS};

use super::{
    SuperShort, biased,
    codes::{Codes, CodesBlock, Groups},
};

pub(crate) type Tile = Codes<BlockIQ2XXS>;

impl CodesBlock for BlockIQ2XXS {
    type Kernels = Self;
    type Class = SuperShort;
    const BIAS_BITS: u32 = 6;
    const GROUPS: Groups = Groups::Pairs;
    const FACTOR: f32 = 0.125;
    const TABLE: Option<[u8; 16]> = match Self::CODEBOOK {
        Some(codebook) => Some(biased(codebook, 6)),
        None => None,
    };
}

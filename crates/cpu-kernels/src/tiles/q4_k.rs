//! Q4_K: the K-format of 4 bits, with scales and minima for each 32 columns.

use tokenmill_quant::{
    F16Bits,
    formats::{BlockQ4K, KScales},
};

use super::k_mins::{KMins, KMinsBlock};

pub(crate) type Tile = KMins<BlockQ4K>;

impl KMinsBlock for BlockQ4K {
    fn low_bits(&self) -> &[u8; 128] {
        &self.quants
    }

    fn fifth_bits(&self) -> &[u8; 32] {
        unreachable!("quants of this format have four bits")
    }

    fn group_scales(&self) -> KScales {
        self.group_scales
    }

    fn supers(&self) -> [F16Bits; 2] {
        [self.scale, self.min]
    }
}

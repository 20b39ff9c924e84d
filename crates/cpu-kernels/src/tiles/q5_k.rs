//! Q5_K: the K-format of 5 bits, with scales and minima for each 32 columns.

use tokenmill_quant::{
    F16Bits,
    formats::{BlockQ5K, KScales},
};

use super::k_mins::{KMins, KMinsBlock};

pub(crate) type Tile = KMins<BlockQ5K>;

impl KMinsBlock for BlockQ5K {
    fn low_bits(&self) -> &[u8; 128] {
        &self.quants
    }

    fn fifth_bits(&self) -> &[u8; 32] {
        &self.high_bits
    }

    fn group_scales(&self) -> KScales {
        self.group_scales
    }

    fn supers(&self) -> [F16Bits; 2] {
        [self.scale, self.min]
    }
}

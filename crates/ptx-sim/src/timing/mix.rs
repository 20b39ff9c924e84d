//! [`Mix`]: a hash of sector numbers. Invariant: it is the same on every machine, since the model derives chances from it.

use std::hash::Hasher;

/// Multiplies; the keys are numbers of sectors.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }
}

/// Spreads the bits of a number.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^ value >> 29
}

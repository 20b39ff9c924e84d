//! Grids of eights, into which the IQ1 and IQ2 formats point with one index for eight weights.
//!
//! Five formats have such a grid. An eight is eight digits in 0..=2; a grid is stored as a set of them, since
//! indices count its eights in ascending order.

/// Number of words in a set: one bit for each of the 3^8 eights.
pub(super) const SET_WORDS: usize = 6561_usize.div_ceil(64);

/// Returns the eights of a set, ascending. Bit `n % 64` of word `n / 64` marks the eight whose digit `i` is
/// digit `i` of `n` in base 3; digit `i` of a result is bits `2 * i..`.
pub(super) const fn eights_of<const N: usize>(set: &[u64; SET_WORDS]) -> [u16; N] {
    let mut eights = [0; N];
    let (mut len, mut n) = (0, 0);
    while n < 6561 {
        if set[n / 64] >> (n % 64) & 1 == 1 {
            let (mut rest, mut i) = (n, 0);
            while i < 8 {
                eights[len] |= ((rest % 3) << (2 * i)) as u16;
                rest /= 3;
                i += 1;
            }
            len += 1;
        }
        n += 1;
    }
    assert!(len == N, "the eights of a grid");
    eights
}

/// Returns the digits of an eight.
#[inline(always)]
pub(super) fn digits_of(eight: u16) -> [u8; 8] {
    std::array::from_fn(|i| (eight >> (2 * i) & 3) as u8)
}

/// Expands seven bits to eight signs with an even number of minuses.
#[inline(always)]
pub(super) const fn even_signs(seven: u32) -> u8 {
    let seven = seven as u8 & 0x7f;
    seven | ((seven.count_ones() & 1) << 7) as u8
}

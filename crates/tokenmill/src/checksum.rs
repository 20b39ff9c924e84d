//! [`checksum`]: XXH64, which detects damaged files.
//!
//! It finds damage, not manipulation. Source: the specification of XXH64
//! (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>).

const PRIMES: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];

/// The XXH64 of `bytes` with a seed.
pub(crate) fn checksum(bytes: &[u8], seed: u64) -> u64 {
    let [p1, p2, p3, p4, p5] = PRIMES;
    let (stripes, mut rest) = bytes.as_chunks::<32>();
    let mut hash = if stripes.is_empty() {
        seed.wrapping_add(p5)
    } else {
        let mut lanes = [
            seed.wrapping_add(p1).wrapping_add(p2),
            seed.wrapping_add(p2),
            seed,
            seed.wrapping_sub(p1),
        ];
        for stripe in stripes {
            let (words, _) = stripe.as_chunks::<8>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane = round(*lane, u64::from_le_bytes(*word));
            }
        }
        let rotated = lanes
            .iter()
            .zip([1, 7, 12, 18])
            .map(|(lane, by)| lane.rotate_left(by));
        let sum = rotated.fold(0, u64::wrapping_add);
        lanes.iter().fold(sum, |hash, &lane| {
            (hash ^ round(0, lane)).wrapping_mul(p1).wrapping_add(p4)
        })
    };
    hash = hash.wrapping_add(bytes.len() as u64);
    while let Some((word, others)) = rest.split_first_chunk::<8>() {
        hash ^= round(0, u64::from_le_bytes(*word));
        hash = hash.rotate_left(27).wrapping_mul(p1).wrapping_add(p4);
        rest = others;
    }
    if let Some((word, others)) = rest.split_first_chunk::<4>() {
        hash ^= u64::from(u32::from_le_bytes(*word)).wrapping_mul(p1);
        hash = hash.rotate_left(23).wrapping_mul(p2).wrapping_add(p3);
        rest = others;
    }
    for &byte in rest {
        hash ^= u64::from(byte).wrapping_mul(p5);
        hash = hash.rotate_left(11).wrapping_mul(p1);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(p2);
    hash = (hash ^ (hash >> 29)).wrapping_mul(p3);
    hash ^ (hash >> 32)
}

fn round(lane: u64, word: u64) -> u64 {
    let [p1, p2, ..] = PRIMES;
    lane.wrapping_add(word.wrapping_mul(p2))
        .rotate_left(31)
        .wrapping_mul(p1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the Python package `xxhash`.
    #[test]
    fn sums_are_those_of_the_reference() {
        let bytes: Vec<u8> = (0..255).collect();
        for (len, seed, expected) in [
            (0, 0, 0xef46_db37_51d8_e999),
            (1, 0, 0xe934_a84a_db05_2768),
            (3, 0, 0xe5c7_bb45_33bc_65dd),
            (4, 0, 0xffce_d860_4453_cc1e),
            (7, 0, 0x14cc_643f_630c_72d2),
            (8, 0, 0x884a_1736_14b8_1b8d),
            (13, 0, 0x13d1_7c4c_7797_23a8),
            (13, 0x0123_4567_89ab_cdef, 0x9f95_4b19_390b_e5cd),
            (31, 0, 0xc346_d2b5_9b4d_8ee1),
            (32, 0, 0xcbf5_9c51_16ff_32b4),
            (33, 0, 0x0c53_5d1a_cafb_8ead),
            (47, 0, 0x0d98_83a0_3e7b_fbb8),
            (64, 0, 0xf7c6_7301_db67_13f0),
            (100, 0, 0x6ac1_e580_3216_6597),
            (100, 0x0123_4567_89ab_cdef, 0x40e8_f4ec_2207_f62c),
            (255, 0, 0x0f7d_9750_7caa_d693),
        ] {
            assert_eq!(
                checksum(&bytes[..len], seed),
                expected,
                "{len} bytes, seed {seed}"
            );
        }
    }
}

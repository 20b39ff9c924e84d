//! Every operation of every instruction set against [`Portable`](super::Portable), on values at the ends of their ranges.
//!
//! The tests of kernels have few such values. The bits must be equal, except for NaNs: the NaN that an
//! operation returns is not defined.

use tokenmill_quant::CpuFeatures;

use super::{Kernel, Simd, TILE_ROWS, dispatch};

/// The values of a case, for two to four operands.
struct Values {
    /// Any integers; as bytes, any bytes.
    ints: [[i32; TILE_ROWS]; 3],
    /// Integers none of whose bytes is -128.
    signed: [i32; TILE_ROWS],
    floats: [[f32; TILE_ROWS]; 3],
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    operation: &'static str,
    lanes: [u32; TILE_ROWS],
}

struct AllOperations<'a> {
    values: &'a Values,
}

impl Kernel for AllOperations<'_> {
    type Output = Vec<Outcome>;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Vec<Outcome> {
        const TABLE: [u8; 16] = [0, 255, 7, 128, 127, 1, 2, 3, 90, 91, 92, 93, 200, 201, 202, 13];
        let Values { ints, signed, floats } = self.values;
        let mut outcomes: Vec<Outcome> = Vec::new();
        for half in 0..S::HALVES {
            let at = half * S::LANES;
            let mut n_done = 0;
            let mut lanes = [0u32; TILE_ROWS];
            macro_rules! done {
                ($operation:expr) => {
                    if half == 0 {
                        outcomes.push(Outcome {
                            operation: $operation,
                            lanes: [0; TILE_ROWS],
                        });
                    }
                    outcomes[n_done].lanes[at..][..S::LANES].copy_from_slice(&lanes[..S::LANES]);
                    n_done += 1;
                };
            }
            macro_rules! int {
                ($operation:expr) => {
                    S::store(lanes.as_mut_ptr().cast(), $operation);
                    done!(stringify!($operation));
                };
            }
            // Compares all bits, including those of NaNs.
            macro_rules! chosen {
                ($operation:expr) => {
                    S::store_f32(lanes.as_mut_ptr().cast(), $operation);
                    done!(stringify!($operation));
                };
            }
            macro_rules! float {
                ($operation:expr) => {
                    S::store_f32(lanes.as_mut_ptr().cast(), $operation);
                    for lane in &mut lanes {
                        if f32::from_bits(*lane).is_nan() {
                            *lane = f32::NAN.to_bits();
                        }
                    }
                    done!(stringify!($operation));
                };
            }
            // SAFETY: the processor has the features of `S`; every vector and every narrower load is inside its array.
            unsafe {
                let bytes = ints[0].as_ptr().cast::<u8>();
                let [a, b, c] = [0, 1, 2].map(|i| ints[i].as_ptr().cast::<u8>().add(4 * at));
                let (a, b, c) = (S::load(a), S::load(b), S::load(c));
                let s = S::load(signed.as_ptr().cast::<u8>().add(4 * at));
                let low = S::and(a, S::splat_u8(0x7f));
                int!(S::splat(-77));
                int!(S::splat_u8(200));
                int!(S::load_splat(bytes.add(1)));
                int!(S::load_u8(bytes.add(at)));
                int!(S::load_i8(bytes.add(at)));
                int!(S::load_u8_pairs(bytes.add(2 * at)));
                int!(S::load_i8_pairs(bytes.add(2 * at)));
                let mut halves = [0i16; TILE_ROWS];
                S::store_low_halves(halves.as_mut_ptr(), S::and(a, S::splat(0x7fff)));
                for (lane, half) in lanes.iter_mut().zip(halves) {
                    *lane = u32::from(half as u16);
                }
                done!("store_low_halves");
                int!(S::and(a, b));
                int!(S::or(a, b));
                int!(S::look_up(&TABLE, S::and(a, S::splat_u8(0x0f))));
                int!(S::shr16(a, 0));
                int!(S::shr16(a, 1));
                int!(S::shr16(a, 15));
                int!(S::shl16(a, 0));
                int!(S::shl16(a, 3));
                int!(S::shl16(a, 15));
                int!(S::shl32(a, 0));
                int!(S::shl32(a, 23));
                int!(S::shl32(a, 31));
                int!(S::shr32(a, 0));
                int!(S::shr32(a, 4));
                int!(S::shr32(a, 31));
                int!(S::add_i32(a, b));
                int!(S::sub_i32(a, b));
                int!(S::dot_u8::<true>(c, a, s));
                int!(S::dot_u8::<false>(c, low, s));
                // Operations that only some implementations have, against the common operations.
                int!(if S::CENTERS_WIDE {
                    S::dot_centered(c, a, s)
                } else {
                    let bias = S::dot_u8::<true>(S::splat(0), S::splat_u8(128), s);
                    S::sub_i32(S::dot_u8::<true>(c, a, s), bias)
                });
                let x = [signed.as_ptr().cast::<u8>(), signed.as_ptr().cast::<u8>().add(20)];
                let sums = if S::HAS_MATRIX {
                    S::unzip32(S::dot_eights(S::zip32(c, s), S::zip32(a, b), x))
                } else {
                    let first = S::dot_u8::<true>(c, a, S::load_splat(x[0]));
                    let second = S::dot_u8::<true>(s, a, S::load_splat(x[1]));
                    [
                        S::dot_u8::<true>(first, b, S::load_splat(x[0].add(4))),
                        S::dot_u8::<true>(second, b, S::load_splat(x[1].add(4))),
                    ]
                };
                int!(sums[0]);
                int!(sums[1]);
                int!(S::dot_i16(c, a, s));
                int!(S::dot_i16_of_many(c, a, s));
                float!(S::to_f32(a));
                chosen!(S::from_bits(a));
                float!(S::load_f16(bytes.add(2 * at)));
                float!(S::load_bf16(bytes.add(2 * at)));
                float!(S::load_e4m3(bytes.add(at)));

                let [f, g, h] = [0, 1, 2].map(|i| floats[i].as_ptr().add(at));
                let (f, g, h) = (S::load_f32(f), S::load_f32(g), S::load_f32(h));
                int!(S::to_i32(f));
                float!(S::splat_f32(1.5e-40));
                float!(S::fma(f, g, h));
                float!(S::mul(f, g));
                // Magnitudes from 1/2 to 2 of either sign, made of a number's bits with other exponents; one
                // case is NaN.
                let fraction = S::and(a, S::splat(0x807f_ffff_u32 as i32));
                let exponent = S::add_i32(S::splat(126 << 23), S::shl32(S::and(b, S::splat(1)), 23));
                let magnitude = S::from_bits(S::or(fraction, exponent));
                let n = S::sub_i32(S::and(c, S::splat(0xff)), S::splat(128));
                float!(S::mul_two_to(magnitude, n));
                float!(S::mul_two_to(magnitude, S::sub_i32(n, S::splat(72))));
                float!(S::mul_two_to(magnitude, S::add_i32(n, S::splat(73))));
                float!(S::mul_two_to(S::splat_f32(f32::NAN), n));
                float!(S::add(f, g));
                float!(S::sub(f, g));
                float!(S::div(f, g));
                chosen!(S::max(f, g));
                chosen!(S::min(f, g));
            }
            assert_eq!(n_done, outcomes.len());
        }
        outcomes
    }
}

fn values(seed: u64) -> Values {
    const INTS: [i32; 12] = [
        0,
        -1,
        i32::MIN,
        i32::MAX,
        0x7f7f_7f7f,
        0x8080_8080_u32 as i32,
        0x7fff_8000,
        0x8000_8000_u32 as i32,
        0x7c00_fc01_u32 as i32,
        0x0001_03ff,
        0x7f80_ff80,
        1 << 24 | 1,
    ];
    const FLOATS: [f32; 20] = [
        0.0,
        -0.0,
        0.5,
        1.5,
        -2.5,
        2_147_483_520.0,
        2_147_483_648.0,
        -2_147_483_648.0,
        -2_147_483_904.0,
        16_777_217.0,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        1e-45,
        -3e-39,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        4e9,
    ];
    let mut state = seed;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let mut int = || {
        let bits = next();
        if bits.is_multiple_of(3) {
            INTS[next() as usize % INTS.len()]
        } else {
            next() as i32
        }
    };
    let ints: [[i32; TILE_ROWS]; 3] = std::array::from_fn(|_| std::array::from_fn(|_| int()));
    let signed = std::array::from_fn(|_| {
        i32::from_le_bytes(
            int()
                .to_le_bytes()
                .map(|byte| if byte == 0x80 { 0x81 } else { byte }),
        )
    });
    let floats = std::array::from_fn(|_| {
        std::array::from_fn(|_| match int() as u32 % 3 {
            0 => FLOATS[int() as u32 as usize % FLOATS.len()],
            1 => (int() >> 12) as f32 * 0.5,
            _ => f32::from_bits(int() as u32),
        })
    });
    Values { ints, signed, floats }
}

#[test]
fn operations_have_the_bits_of_portable_ones() {
    for seed in 0..600 {
        let values = values(seed);
        let run = |features| {
            // SAFETY: the kernel holds references only.
            unsafe { dispatch(features, AllOperations { values: &values }) }
        };
        let expected = run(CpuFeatures::scalar());
        for features in CpuFeatures::each_path() {
            for (found, expected) in run(features).iter().zip(&expected) {
                assert_eq!(found, expected, "{features}, case {seed}");
            }
        }
    }
}

#[test]
fn every_half_precision_number_is_loaded_alike() {
    for first in (0..=u16::MAX).step_by(TILE_ROWS) {
        let mut values = values(0);
        for (i, int) in (0u16..).zip(&mut values.ints[0]) {
            let low = u32::from(first.wrapping_add(2 * i));
            *int = (low | (low + 1) << 16) as i32;
        }
        // SAFETY: the kernel holds references only.
        let run = |features| unsafe { dispatch(features, AllOperations { values: &values }) };
        let expected = run(CpuFeatures::scalar());
        for features in CpuFeatures::each_path() {
            assert_eq!(run(features), expected, "{features}, from {first:04x} on");
        }
    }
}

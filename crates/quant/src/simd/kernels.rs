//! The dot kernels on 256-bit registers: one source, compiled by each instruction set's module.
//!
//! [`kernels`] is a macro because a feature list must be a literal at each function. The module that invokes it
//! provides `dot_u8_i8`. Kernels hold no unsafe code: memory is read through `load`, and everything else is arithmetic.
//! Invariant: integers are exact, and floats are added in the order of [`crate::lanes`], unfused, so the bits are those
//! of the formats' `dot_scalar`. Activations lie in -127..=127.

/// Writes all kernels for a list of target features.
macro_rules! kernels {
    ($features:literal) => {
        use std::arch::x86_64::*;

        use bytemuck::{Pod, cast};

        use super::load::{load_64, load_128, load_256};
        use crate::F16Bits;
        use crate::formats::{
            BlockBF16, BlockF16, BlockF32, BlockIQ4NL, BlockIQ4XS, BlockMXFP4, BlockQ2K, BlockQ3K, BlockQ4_0,
            BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, BlockQ8_1, BlockQ8K,
            IQ4_CODEBOOK, MXFP4_CODEBOOK,
        };
        use crate::lanes::{BLOCK_LANES, VALUE_LANES, add_lanes};

        // Formats without blocks.

        #[target_feature(enable = $features)]
        pub(super) fn dot_f32(weights: &[BlockF32], activations: &[BlockF32]) -> f32 {
            sum_products(
                weights,
                activations,
                |w| _mm256_castsi256_ps(load_256(w)),
                |w| w.to_f32(),
            )
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_f16(weights: &[BlockF16], activations: &[BlockF32]) -> f32 {
            sum_products(
                weights,
                activations,
                |w| _mm256_cvtph_ps(load_128(w)),
                |w| w.0.to_f32(),
            )
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_bf16(weights: &[BlockBF16], activations: &[BlockF32]) -> f32 {
            let decode = |w: &[BlockBF16; 8]| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_128(w))))
            };
            sum_products(weights, activations, decode, |w| w.to_f32())
        }

        /// Sums products in 32 lanes, four registers; the tail goes to the lanes one by one.
        #[inline]
        #[target_feature(enable = $features)]
        fn sum_products<W: Pod>(
            weights: &[W],
            activations: &[BlockF32],
            decode_8: impl Fn(&[W; 8]) -> __m256,
            decode: impl Fn(&W) -> f32,
        ) -> f32 {
            let (w_chunks, w_tail) = weights.as_chunks::<VALUE_LANES>();
            let (a_chunks, a_tail) = activations.as_chunks::<VALUE_LANES>();
            let mut sums = [_mm256_setzero_ps(); VALUE_LANES / 8];
            for (w, a) in w_chunks.iter().zip(a_chunks) {
                let (w, a) = (w.as_chunks::<8>().0, a.as_chunks::<8>().0);
                for (sum, (w, a)) in sums.iter_mut().zip(w.iter().zip(a)) {
                    let product = _mm256_mul_ps(decode_8(w), _mm256_castsi256_ps(load_256(a)));
                    *sum = _mm256_add_ps(*sum, product);
                }
            }
            let mut lanes: [f32; VALUE_LANES] = cast(sums);
            for (lane, (w, a)) in lanes.iter_mut().zip(w_tail.iter().zip(a_tail)) {
                *lane += decode(w) * a.to_f32();
            }
            add_lanes(lanes)
        }

        // Formats with 32 weights a block.

        #[target_feature(enable = $features)]
        pub(super) fn dot_q4_0(weights: &[BlockQ4_0], activations: &[BlockQ8_0]) -> f32 {
            let products = |w: &BlockQ4_0, a: &BlockQ8_0| {
                let a = load_256(&a.quants);
                let offset = dot_u8_i8(_mm256_set1_epi8(8), a);
                _mm256_sub_epi32(dot_u8_i8(nibbles(load_128(&w.quants)), a), offset)
            };
            sum_blocks(weights, activations, products, |w, a, products| {
                let scale = _mm256_mul_ps(floats(w.map(|w| w.scale)), floats(a.map(|a| a.scale)));
                _mm256_mul_ps(scale, products)
            })
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_q4_1(weights: &[BlockQ4_1], activations: &[BlockQ8_1]) -> f32 {
            let products =
                |w: &BlockQ4_1, a: &BlockQ8_1| dot_u8_i8(nibbles(load_128(&w.quants)), load_256(&a.quants));
            sum_blocks(weights, activations, products, |w, a, products| {
                let scale = _mm256_mul_ps(floats(w.map(|w| w.scale)), floats(a.map(|a| a.scale)));
                let offset = _mm256_mul_ps(floats(w.map(|w| w.min)), floats(a.map(|a| a.sum)));
                _mm256_add_ps(_mm256_mul_ps(scale, products), offset)
            })
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_q5_0(weights: &[BlockQ5_0], activations: &[BlockQ8_0]) -> f32 {
            let products = |w: &BlockQ5_0, a: &BlockQ8_0| {
                let a = load_256(&a.quants);
                let quants = _mm256_or_si256(nibbles(load_128(&w.quants)), fifth_bits(w.high_bits));
                _mm256_sub_epi32(dot_u8_i8(quants, a), dot_u8_i8(_mm256_set1_epi8(16), a))
            };
            sum_blocks(weights, activations, products, |w, a, products| {
                let scale = _mm256_mul_ps(floats(w.map(|w| w.scale)), floats(a.map(|a| a.scale)));
                _mm256_mul_ps(scale, products)
            })
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_q5_1(weights: &[BlockQ5_1], activations: &[BlockQ8_1]) -> f32 {
            let products = |w: &BlockQ5_1, a: &BlockQ8_1| {
                let quants = _mm256_or_si256(nibbles(load_128(&w.quants)), fifth_bits(w.high_bits));
                dot_u8_i8(quants, load_256(&a.quants))
            };
            sum_blocks(weights, activations, products, |w, a, products| {
                let scale = _mm256_mul_ps(floats(w.map(|w| w.scale)), floats(a.map(|a| a.scale)));
                let offset = _mm256_mul_ps(floats(w.map(|w| w.min)), floats(a.map(|a| a.sum)));
                _mm256_add_ps(_mm256_mul_ps(scale, products), offset)
            })
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_q8_0(weights: &[BlockQ8_0], activations: &[BlockQ8_0]) -> f32 {
            let products = |w: &BlockQ8_0, a: &BlockQ8_0| dot_i8_i8(load_256(&w.quants), load_256(&a.quants));
            sum_blocks(weights, activations, products, |w, a, products| {
                let scale = _mm256_mul_ps(floats(w.map(|w| w.scale)), floats(a.map(|a| a.scale)));
                _mm256_mul_ps(scale, products)
            })
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_iq4_nl(weights: &[BlockIQ4NL], activations: &[BlockQ8_0]) -> f32 {
            let products = |w: &BlockIQ4NL, a: &BlockQ8_0| {
                dot_i8_i8(
                    look_up(&IQ4_CODEBOOK, load_128(&w.quants)),
                    load_256(&a.quants),
                )
            };
            sum_blocks(weights, activations, products, |w, a, products| {
                let scale = _mm256_mul_ps(floats(w.map(|w| w.scale)), floats(a.map(|a| a.scale)));
                _mm256_mul_ps(scale, products)
            })
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_mxfp4(weights: &[BlockMXFP4], activations: &[BlockQ8_0]) -> f32 {
            let products = |w: &BlockMXFP4, a: &BlockQ8_0| {
                dot_i8_i8(
                    look_up(&MXFP4_CODEBOOK, load_128(&w.quants)),
                    load_256(&a.quants),
                )
            };
            sum_blocks(weights, activations, products, |w, a, products| {
                let scale = _mm256_castsi256_ps(load_256(&w.map(|w| w.half_scale())));
                let scale = _mm256_mul_ps(scale, floats(a.map(|a| a.scale)));
                _mm256_mul_ps(scale, products)
            })
        }

        /// Multiplies signed bytes in -128..=127 by signed bytes in -127..=127 and adds each four products.
        #[inline]
        #[target_feature(enable = $features)]
        fn dot_i8_i8(weights: __m256i, activations: __m256i) -> __m256i {
            // The sign moves from the weight to the activation; |-128| is 128 as an unsigned byte.
            dot_u8_i8(
                _mm256_abs_epi8(weights),
                _mm256_sign_epi8(activations, weights),
            )
        }

        /// Looks the low halves of 16 bytes, then the high halves, up in a codebook.
        #[inline]
        #[target_feature(enable = $features)]
        fn look_up(codebook: &[i8; 16], quants: __m128i) -> __m256i {
            _mm256_shuffle_epi8(
                _mm256_broadcastsi128_si256(load_128(codebook)),
                nibbles(quants),
            )
        }

        /// Sums one term per block in 8 lanes: the integers of eight blocks are added across to one register, and
        /// `term` scales them. A last group of fewer is filled up with zeros, which add nothing.
        #[inline]
        #[target_feature(enable = $features)]
        fn sum_blocks<W: Pod, A: Pod>(
            weights: &[W],
            activations: &[A],
            products: impl Fn(&W, &A) -> __m256i,
            term: impl Fn(&[W; BLOCK_LANES], &[A; BLOCK_LANES], __m256) -> __m256,
        ) -> f32 {
            let group_term = |w: &[W; BLOCK_LANES], a: &[A; BLOCK_LANES]| {
                let sums = add_across([
                    products(&w[0], &a[0]),
                    products(&w[1], &a[1]),
                    products(&w[2], &a[2]),
                    products(&w[3], &a[3]),
                    products(&w[4], &a[4]),
                    products(&w[5], &a[5]),
                    products(&w[6], &a[6]),
                    products(&w[7], &a[7]),
                ]);
                term(w, a, _mm256_cvtepi32_ps(sums))
            };
            let (w_groups, w_tail) = weights.as_chunks::<BLOCK_LANES>();
            let (a_groups, a_tail) = activations.as_chunks::<BLOCK_LANES>();
            let mut sums = _mm256_setzero_ps();
            for (w, a) in w_groups.iter().zip(a_groups) {
                sums = _mm256_add_ps(sums, group_term(w, a));
            }
            if !w_tail.is_empty() {
                let (mut w, mut a) = ([W::zeroed(); BLOCK_LANES], [A::zeroed(); BLOCK_LANES]);
                w[..w_tail.len()].copy_from_slice(w_tail);
                a[..a_tail.len()].copy_from_slice(a_tail);
                sums = _mm256_add_ps(sums, group_term(&w, &a));
            }
            add_lanes::<BLOCK_LANES>(cast(sums))
        }

        /// Unpacks 16 bytes to their low halves followed by their high halves.
        #[inline]
        #[target_feature(enable = $features)]
        fn nibbles(bytes: __m128i) -> __m256i {
            let low = _mm_set1_epi8(0xf);
            _mm256_set_m128i(
                _mm_and_si128(_mm_srli_epi16::<4>(bytes), low),
                _mm_and_si128(bytes, low),
            )
        }

        /// Spreads 32 bits over 32 bytes, each 16 or 0.
        #[inline]
        #[target_feature(enable = $features)]
        fn fifth_bits(bits: [u8; 4]) -> __m256i {
            // Byte i gets the bits' byte i / 8, all but its bit i % 8 set; where that bit is set too, the byte is -1.
            let which_byte = _mm256_setr_epi32(
                0,
                0,
                0x0101_0101,
                0x0101_0101,
                0x0202_0202,
                0x0202_0202,
                0x0303_0303,
                0x0303_0303,
            );
            let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(bits)), which_byte);
            let others = _mm256_set1_epi64x(0x7fbf_dfef_f7fb_fdfe);
            let is_set = _mm256_cmpeq_epi8(_mm256_or_si256(spread, others), _mm256_set1_epi8(-1));
            _mm256_and_si256(is_set, _mm256_set1_epi8(16))
        }

        /// Decodes eight scales.
        #[inline]
        #[target_feature(enable = $features)]
        fn floats(halves: [F16Bits; 8]) -> __m256 {
            _mm256_cvtph_ps(load_128(&halves))
        }

        /// Adds up each register; lane `i` of the result is the sum of register `i`.
        #[inline]
        #[target_feature(enable = $features)]
        fn add_across(v: [__m256i; 8]) -> __m256i {
            let low = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
            let high = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
            _mm256_add_epi32(
                _mm256_permute2x128_si256::<0x20>(low, high),
                _mm256_permute2x128_si256::<0x31>(low, high),
            )
        }

        // Formats with 256 weights a block.

        #[target_feature(enable = $features)]
        pub(super) fn dot_q2_k(weights: &[BlockQ2K], activations: &[BlockQ8K]) -> f32 {
            let mut sum = 0.0;
            for (w, a) in weights.iter().zip(activations) {
                let packed = load_128(&w.group_scales);
                let low = _mm_set1_epi8(0xf);
                let scales = _mm256_cvtepi8_epi16(_mm_and_si128(packed, low));
                let mins = _mm256_cvtepi8_epi16(_mm_and_si128(_mm_srli_epi16::<4>(packed), low));
                let offsets = _mm256_madd_epi16(mins, load_256(&a.sums));

                let scales = PairScales::new(scales);
                let mut products = _mm256_setzero_si256();
                for (half, bytes) in w.quants.as_chunks::<32>().0.iter().enumerate() {
                    let mut bits = load_256(bytes);
                    for k in 4 * half..4 * half + 4 {
                        let quants = _mm256_and_si256(bits, _mm256_set1_epi8(3));
                        products = _mm256_add_epi32(products, scales.apply(k, dot_32(quants, a, k)));
                        bits = _mm256_srli_epi16::<2>(bits);
                    }
                }
                sum += w.term(a, add_up(products), add_up(offsets));
            }
            sum
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_q3_k(weights: &[BlockQ3K], activations: &[BlockQ8K]) -> f32 {
            let mut sum = 0.0;
            for (w, a) in weights.iter().zip(activations) {
                let scales = _mm256_cvtepi8_epi16(load_128(&w.unpack_scales()));
                let offsets = _mm256_slli_epi32::<2>(_mm256_madd_epi16(scales, load_256(&a.sums)));

                let scales = PairScales::new(scales);
                let mut high_bits = load_256(&w.high_bits);
                let mut products = _mm256_setzero_si256();
                for (half, bytes) in w.quants.as_chunks::<32>().0.iter().enumerate() {
                    let mut bits = load_256(bytes);
                    for k in 4 * half..4 * half + 4 {
                        let low = _mm256_and_si256(bits, _mm256_set1_epi8(3));
                        let high = _mm256_slli_epi16::<2>(_mm256_and_si256(high_bits, _mm256_set1_epi8(1)));
                        let quants = _mm256_or_si256(low, high);
                        products = _mm256_add_epi32(products, scales.apply(k, dot_32(quants, a, k)));
                        bits = _mm256_srli_epi16::<2>(bits);
                        high_bits = _mm256_srli_epi16::<1>(high_bits);
                    }
                }
                sum += w.term(a, add_up(_mm256_sub_epi32(products, offsets)));
            }
            sum
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_q4_k(weights: &[BlockQ4K], activations: &[BlockQ8K]) -> f32 {
            let mut sum = 0.0;
            for (w, a) in weights.iter().zip(activations) {
                let (scales, mins) = w.group_scales.unpack();
                let low = _mm256_set1_epi8(0xf);
                let mut products = _mm256_setzero_si256();
                for (pair, bytes) in w.quants.as_chunks::<32>().0.iter().enumerate() {
                    let bytes = load_256(bytes);
                    let first = dot_32(_mm256_and_si256(bytes, low), a, 2 * pair);
                    let second = dot_32(
                        _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low),
                        a,
                        2 * pair + 1,
                    );
                    products = _mm256_add_epi32(products, scale_by(scales[2 * pair], first));
                    products = _mm256_add_epi32(products, scale_by(scales[2 * pair + 1], second));
                }
                sum += w.term(a, add_up(products), add_up(offset_sums(mins, a)));
            }
            sum
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_q5_k(weights: &[BlockQ5K], activations: &[BlockQ8K]) -> f32 {
            let mut sum = 0.0;
            for (w, a) in weights.iter().zip(activations) {
                let (scales, mins) = w.group_scales.unpack();
                let (low, fifth) = (_mm256_set1_epi8(0xf), _mm256_set1_epi8(16));
                let mut high_bits = load_256(&w.high_bits);
                let mut products = _mm256_setzero_si256();
                for (pair, bytes) in w.quants.as_chunks::<32>().0.iter().enumerate() {
                    let bytes = load_256(bytes);
                    let first = _mm256_or_si256(
                        _mm256_and_si256(bytes, low),
                        _mm256_and_si256(_mm256_slli_epi16::<4>(high_bits), fifth),
                    );
                    let second = _mm256_or_si256(
                        _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low),
                        _mm256_and_si256(_mm256_slli_epi16::<3>(high_bits), fifth),
                    );
                    let (first, second) = (dot_32(first, a, 2 * pair), dot_32(second, a, 2 * pair + 1));
                    products = _mm256_add_epi32(products, scale_by(scales[2 * pair], first));
                    products = _mm256_add_epi32(products, scale_by(scales[2 * pair + 1], second));
                    high_bits = _mm256_srli_epi16::<2>(high_bits);
                }
                sum += w.term(a, add_up(products), add_up(offset_sums(mins, a)));
            }
            sum
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_q6_k(weights: &[BlockQ6K], activations: &[BlockQ8K]) -> f32 {
            let mut sum = 0.0;
            for (w, a) in weights.iter().zip(activations) {
                let scales = _mm256_cvtepi8_epi16(load_128(&w.group_scales));
                let offsets = _mm256_slli_epi32::<5>(_mm256_madd_epi16(scales, load_256(&a.sums)));

                let scales = PairScales::new(scales);
                let (low_4, high_2) = (_mm256_set1_epi8(0xf), _mm256_set1_epi8(0x30));
                let mut products = _mm256_setzero_si256();
                let halves = w
                    .low_bits
                    .as_chunks::<64>()
                    .0
                    .iter()
                    .zip(w.high_bits.as_chunks::<32>().0);
                for (half, (low_bits, high_bits)) in halves.enumerate() {
                    let [first, second]: [[u8; 32]; 2] = cast(*low_bits);
                    let (first, second, high) = (load_256(&first), load_256(&second), load_256(high_bits));
                    let quants = [
                        (first, _mm256_slli_epi16::<4>(high)),
                        (second, _mm256_slli_epi16::<2>(high)),
                        (_mm256_srli_epi16::<4>(first), high),
                        (_mm256_srli_epi16::<4>(second), _mm256_srli_epi16::<2>(high)),
                    ];
                    for (k, (low, high)) in quants.into_iter().enumerate() {
                        let quants =
                            _mm256_or_si256(_mm256_and_si256(low, low_4), _mm256_and_si256(high, high_2));
                        let k = 4 * half + k;
                        products = _mm256_add_epi32(products, scales.apply(k, dot_32(quants, a, k)));
                    }
                }
                sum += w.term(a, add_up(_mm256_sub_epi32(products, offsets)));
            }
            sum
        }

        #[target_feature(enable = $features)]
        pub(super) fn dot_iq4_xs(weights: &[BlockIQ4XS], activations: &[BlockQ8K]) -> f32 {
            let mut sum = 0.0;
            for (w, a) in weights.iter().zip(activations) {
                let mut products = _mm256_setzero_si256();
                let groups = w
                    .quants
                    .iter()
                    .zip(a.quants.as_chunks::<32>().0)
                    .zip(w.unpack_scales());
                for ((quants, activations), scale) in groups {
                    let values = look_up(&IQ4_CODEBOOK, load_128(quants));
                    let group = dot_i8_i8(values, load_256(activations));
                    products = _mm256_add_epi32(products, scale_by(scale, group));
                }
                sum += w.term(a, add_up(products));
            }
            sum
        }

        /// Multiplies 32 quants by activations `32 * k` and on, and adds each four.
        #[inline]
        #[target_feature(enable = $features)]
        fn dot_32(quants: __m256i, activation: &BlockQ8K, k: usize) -> __m256i {
            dot_u8_i8(quants, load_256(&activation.quants.as_chunks::<32>().0[k]))
        }

        /// The minima of groups of 32 times the activations' sums.
        #[inline]
        #[target_feature(enable = $features)]
        fn offset_sums(mins: [u8; 8], activation: &BlockQ8K) -> __m256i {
            let mins = load_64(&mins);
            // There are two sums of 16 for each minimum.
            let doubled = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(mins, mins));
            _mm256_madd_epi16(doubled, load_256(&activation.sums))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn scale_by(scale: impl Into<i32>, products: __m256i) -> __m256i {
            _mm256_mullo_epi32(products, _mm256_set1_epi32(scale.into()))
        }

        /// Scales of sixteen groups of 16, applied to 32 products at a time.
        struct PairScales([__m256i; 2]);

        impl PairScales {
            /// Takes sixteen 16-bit scales.
            #[inline]
            #[target_feature(enable = $features)]
            fn new(scales: __m256i) -> Self {
                let [low, high]: [__m128i; 2] = cast(scales);
                Self([_mm256_cvtepi16_epi32(low), _mm256_cvtepi16_epi32(high)])
            }

            /// Scales the products of groups `2 * k`, in the lower half, and `2 * k + 1`.
            #[inline]
            #[target_feature(enable = $features)]
            fn apply(&self, k: usize, products: __m256i) -> __m256i {
                let first = 2 * (k % 4) as i32;
                let second = first + 1;
                let lanes = _mm256_setr_epi32(first, first, first, first, second, second, second, second);
                _mm256_mullo_epi32(products, _mm256_permutevar8x32_epi32(self.0[k / 4], lanes))
            }
        }

        /// Adds up the eight lanes.
        #[inline]
        #[target_feature(enable = $features)]
        fn add_up(lanes: __m256i) -> i32 {
            let lanes: [__m128i; 2] = cast(lanes);
            let sum = _mm_add_epi32(lanes[0], lanes[1]);
            let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
            let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b00_00_00_01>(sum));
            _mm_cvtsi128_si32(sum)
        }
    };
}

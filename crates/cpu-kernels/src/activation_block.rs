//! [`ActivationBlock`]: activations as bytes, with the sums that weights with a bias or a minimum need.
//!
//! Blocks are quantized once per input and read by every matrix of a group. Blocks of one span of columns are
//! together, row after row, so that a kernel that takes several rows reads one stream. Invariant: a block is
//! a function of its 256 values alone, with the same bits for every instruction set.

use tokenmill_quant::CpuFeatures;

use crate::simd::{Kernel, Simd, dispatch};

/// The number of columns of a span, which one block covers.
pub const SPAN_COLS: usize = 256;
/// The smallest number of columns that share a scale or a sum.
pub(crate) const SUB_COLS: usize = 32;
/// The number of groups of [`SUB_COLS`] in a whole span.
pub(crate) const SPAN_SUBS: usize = SPAN_COLS / SUB_COLS;

/// The number of columns that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleSpan {
    /// One scale for 32 columns, as in weights of formats with blocks of 32.
    Sub,
    /// One scale for 256 columns, as in weights of K-formats.
    Span,
}

/// 256 activations of one row. Columns beyond the row's end are 0.
///
/// `side` holds one 32-bit word for each item:
///
/// | scales for | 0..8 | 8..16 | 16..24 | 24..28 | 28 |
/// |---|---|---|---|---|---|
/// | [`ScaleSpan::Sub`] | scale, f32 | -sum of 32, i32 | scale * sum, f32 | | |
/// | [`ScaleSpan::Span`] | -sum of 16, i32 | (up to 16) | sums of 16, two i16 | sums of 32, two i16 | scale, f32 |
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct ActivationBlock {
    pub(crate) quants: [i8; SPAN_COLS],
    pub(crate) side: [u32; 32],
}

impl Default for ActivationBlock {
    fn default() -> Self {
        Self {
            quants: [0; SPAN_COLS],
            side: [0; 32],
        }
    }
}

impl ActivationBlock {
    /// The index of the first scale's word, for [`ScaleSpan::Sub`] and below for [`ScaleSpan::Span`].
    pub(crate) const SUB_SCALE: usize = 0;
    pub(crate) const SPAN_SCALE: usize = 28;
    /// The index of the first negated sum's word, for sums of 32 and below for sums of 16.
    pub(crate) const NEG_SUM_32: usize = 8;
    pub(crate) const NEG_SUM_16: usize = 0;
    /// The index of the first word with a product of scale and sum.
    pub(crate) const SCALED_SUM_32: usize = 16;
    /// The index of the first word with a pair of sums, for sums of 16 and below for sums of 32.
    pub(crate) const SUM_PAIRS_16: usize = 16;
    pub(crate) const SUM_PAIRS_32: usize = 24;
}

/// Returns the number of spans that cover `n_cols`; the last may be partial.
pub fn n_spans(n_cols: usize) -> usize {
    n_cols.div_ceil(SPAN_COLS)
}

impl ActivationBlock {
    /// Quantizes up to 256 activations, a multiple of 32.
    ///
    /// # Panics
    /// If there are more.
    pub fn quantize(&mut self, features: CpuFeatures, scale_span: ScaleSpan, values: &[f32]) {
        assert!(values.len() <= SPAN_COLS, "activations of a block");
        // SAFETY: the kernel holds references only.
        unsafe {
            dispatch(
                features,
                Quantize {
                    scale_span,
                    values,
                    block: self,
                },
            );
        }
    }
}

struct Quantize<'a> {
    scale_span: ScaleSpan,
    values: &'a [f32],
    block: &'a mut ActivationBlock,
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            scale_span,
            values,
            block: ActivationBlock { quants, side },
        } = self;
        let mut padded = [0.0; SPAN_COLS];
        let values: &[f32; SPAN_COLS] = if let Ok(values) = values.try_into() {
            values
        } else {
            padded[..values.len()].copy_from_slice(values);
            &padded
        };
        // SAFETY: the processor has the features of `S`; both runs are a whole number of vectors.
        unsafe {
            match scale_span {
                ScaleSpan::Sub => {
                    let mut scales = [0.0; SPAN_SUBS];
                    for (sub, scale) in scales.iter_mut().enumerate() {
                        let cols = sub * SUB_COLS..(sub + 1) * SUB_COLS;
                        *scale = quantize_run::<S>(&values[cols.clone()], &mut quants[cols]);
                    }
                    let sums = sums_of_16::<S>(quants);
                    for (sub, scale) in scales.iter().enumerate() {
                        let sum = sums[2 * sub] + sums[2 * sub + 1];
                        side[ActivationBlock::SUB_SCALE + sub] = scale.to_bits();
                        side[ActivationBlock::NEG_SUM_32 + sub] = -sum as u32;
                        side[ActivationBlock::SCALED_SUM_32 + sub] = (scale * sum as f32).to_bits();
                    }
                }
                ScaleSpan::Span => {
                    let scale = quantize_run::<S>(values, quants);
                    let sums = sums_of_16::<S>(quants);
                    for (i, sum) in sums.iter().enumerate() {
                        side[ActivationBlock::NEG_SUM_16 + i] = -sum as u32;
                    }
                    let pair = |low: i32, high: i32| u32::from(low as u16) | u32::from(high as u16) << 16;
                    for i in 0..8 {
                        side[ActivationBlock::SUM_PAIRS_16 + i] = pair(sums[2 * i], sums[2 * i + 1]);
                    }
                    for i in 0..4 {
                        let s = &sums[4 * i..4 * i + 4];
                        side[ActivationBlock::SUM_PAIRS_32 + i] = pair(s[0] + s[1], s[2] + s[3]);
                    }
                    side[ActivationBlock::SPAN_SCALE] = scale.to_bits();
                }
            }
        }
    }
}

/// Quantizes a multiple of 32 values that share a scale, and returns the scale: the largest absolute value
/// becomes 127. A value that is not finite makes the scale NaN, so that no product hides it.
#[inline(always)]
pub(crate) unsafe fn quantize_run<S: Simd>(values: &[f32], quants: &mut [i8]) -> f32 {
    // Magnitudes have the order of their bits, and compilers vectorize a maximum of integers.
    let largest = values.iter().map(|x| x.abs().to_bits()).fold(0, u32::max);
    let largest = if largest < f32::INFINITY.to_bits() {
        f32::from_bits(largest)
    } else {
        f32::NAN
    };
    let inverse = 127.0 / largest;
    // SAFETY: the processor has the features of `S`; `values` is a whole number of vectors, and `quants` as long.
    unsafe {
        let inverse = S::splat_f32(if inverse.is_finite() { inverse } else { 0.0 });
        for at in (0..values.len()).step_by(S::LANES) {
            let q = S::to_i32(S::mul(S::load_f32(values[at..].as_ptr()), inverse));
            S::store_low_bytes(quants[at..].as_mut_ptr(), q);
        }
    }
    largest / 127.0
}

/// Returns the sums of each 16 quants.
#[inline(always)]
unsafe fn sums_of_16<S: Simd>(quants: &[i8; SPAN_COLS]) -> [i32; 16] {
    let mut sums_of_4 = [0i32; SPAN_COLS / 4];
    for (at, quants) in (0..SPAN_COLS / 4)
        .step_by(S::LANES)
        .zip(quants.chunks(4 * S::LANES))
    {
        // SAFETY: the processor has the features of `S`; a vector's bytes and lanes are inside the arrays; no quant is -128.
        unsafe {
            let quants = S::load(quants.as_ptr().cast());
            let sums = S::dot_u8::<false>(S::splat(0), S::splat_u8(1), quants);
            S::store(sums_of_4[at..].as_mut_ptr().cast(), sums);
        }
    }
    let sums_of_4 = sums_of_4.as_chunks::<4>().0;
    std::array::from_fn(|i| sums_of_4[i].iter().sum())
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;
    use crate::simd::TILE_ROWS;

    /// Computes a block from the table of [`ActivationBlock`], value by value.
    fn naive(scale_span: ScaleSpan, values: &[f32]) -> ActivationBlock {
        let mut block = ActivationBlock::default();
        let mut padded = values.to_vec();
        padded.resize(SPAN_COLS, 0.0);
        let n_sharing = match scale_span {
            ScaleSpan::Sub => 32,
            ScaleSpan::Span => 256,
        };
        let mut scales = Vec::new();
        for (values, quants) in padded.chunks(n_sharing).zip(block.quants.chunks_mut(n_sharing)) {
            let mut largest = 0.0f32;
            for x in values {
                if !x.is_finite() {
                    largest = f32::NAN;
                } else if x.abs() > largest {
                    largest = x.abs();
                }
            }
            let inverse = 127.0 / largest;
            for (x, quant) in values.iter().zip(quants) {
                // If division by the largest value is impossible, the quants are 0.
                if inverse.is_finite() {
                    *quant = (x * inverse).round_ties_even() as i8;
                }
            }
            scales.push(largest / 127.0);
        }
        let sum = |first: usize, n: usize| -> i32 {
            block.quants[first..first + n].iter().map(|&q| i32::from(q)).sum()
        };
        let pair = |low: i32, high: i32| (low & 0xffff) as u32 + 0x1_0000 * (high & 0xffff) as u32;
        match scale_span {
            ScaleSpan::Sub => {
                for i in 0..8 {
                    block.side[i] = scales[i].to_bits();
                    block.side[8 + i] = -sum(32 * i, 32) as u32;
                    block.side[16 + i] = (scales[i] * sum(32 * i, 32) as f32).to_bits();
                }
            }
            ScaleSpan::Span => {
                for i in 0..16 {
                    block.side[i] = -sum(16 * i, 16) as u32;
                }
                for i in 0..8 {
                    block.side[16 + i] = pair(sum(32 * i, 16), sum(32 * i + 16, 16));
                }
                for i in 0..4 {
                    block.side[24 + i] = pair(sum(64 * i, 32), sum(64 * i + 32, 32));
                }
                block.side[28] = scales[0].to_bits();
            }
        }
        block
    }

    /// Returns the words that the table names. All NaNs become the same one, because the NaN that an
    /// operation returns is not defined.
    fn named_words(scale_span: ScaleSpan, block: &ActivationBlock) -> Vec<u32> {
        let (n_words, is_float): (_, fn(usize) -> bool) = match scale_span {
            ScaleSpan::Sub => (24, |i| !(8..16).contains(&i)),
            ScaleSpan::Span => (29, |i| i == 28),
        };
        let words = block.side[..n_words].iter().enumerate();
        words
            .map(|(i, &word)| {
                if is_float(i) && f32::from_bits(word).is_nan() {
                    f32::NAN.to_bits()
                } else {
                    word
                }
            })
            .collect()
    }

    /// Returns values between -1 and 1.
    fn random(n: usize) -> Vec<f32> {
        let mut state = 1u32;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn rows(n_cols: usize) -> Vec<(&'static str, Vec<f32>)> {
        let scaled = |factor: f32| random(n_cols).iter().map(|x| x * factor).collect::<Vec<_>>();
        // Multiples of a half and a largest value of 127 test the rounding of ties.
        let ties = (0..n_cols).map(|i| {
            if i % 32 == 7 {
                -127.0
            } else {
                (i * 7 % 250) as f32 * 0.5 - 60.0
            }
        });
        let magnitudes = random(n_cols).into_iter().enumerate();
        let magnitudes = magnitudes.map(|(i, x)| x * 10f32.powi((i / 32) as i32 - 4));
        let mut rows = vec![
            ("random", scaled(3.0)),
            ("ties", ties.collect()),
            ("a magnitude for each 32", magnitudes.collect()),
            ("zeros", vec![0.0; n_cols]),
            ("negative zeros", vec![-0.0; n_cols]),
            ("subnormal", scaled(1e-39)),
            ("too small for an inverse", scaled(1e-37)),
            ("large", scaled(f32::MAX)),
        ];
        for (name, value) in [
            ("NaN", f32::NAN),
            ("negative NaN", -f32::NAN),
            ("infinity", f32::INFINITY),
            ("negative infinity", f32::NEG_INFINITY),
        ] {
            for col in [0, n_cols / 2 + 5, n_cols - 1] {
                let mut row = random(n_cols);
                row[col] = value;
                rows.push((name, row));
            }
        }
        rows
    }

    #[test]
    fn blocks_are_those_of_the_naive_twin() {
        for features in CpuFeatures::each_path() {
            for n_cols in [32, 64, 224, 256, 480] {
                let rows = rows(n_cols);
                for scale_span in [ScaleSpan::Sub, ScaleSpan::Span] {
                    // The earlier contents of a block must not change the result.
                    let used = ActivationBlock {
                        quants: [0x55; SPAN_COLS],
                        side: [0xdead_beef; 32],
                    };
                    for (name, row) in &rows {
                        for (span_idx, values) in row.chunks(SPAN_COLS).enumerate() {
                            let mut block = used;
                            block.quantize(features, scale_span, values);
                            let expected = naive(scale_span, values);
                            let case =
                                format!("{features}, {scale_span:?}, {n_cols} columns, {name}, {span_idx}");
                            assert_eq!(block.quants, expected.quants, "{case}");
                            assert_eq!(
                                named_words(scale_span, &block),
                                named_words(scale_span, &expected),
                                "{case}"
                            );
                        }
                    }
                }
            }
        }
    }

    struct StoreLowBytes<'a> {
        lanes: &'a [i32; TILE_ROWS],
        bytes: &'a mut [i8; TILE_ROWS + 16],
    }

    impl Kernel for StoreLowBytes<'_> {
        type Output = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for at in (0..TILE_ROWS).step_by(S::LANES) {
                // SAFETY: the processor has the features of `S`; a vector's lanes and bytes are inside the arrays.
                unsafe {
                    let lanes = S::load(self.lanes[at..].as_ptr().cast());
                    S::store_low_bytes(self.bytes[at..].as_mut_ptr(), lanes);
                }
            }
        }
    }

    #[test]
    fn low_bytes_are_kept_of_lanes_that_no_byte_holds() {
        let mut values = vec![i32::MIN, i32::MIN + 1, i32::MAX, i32::MAX - 1, 1 << 16, -1 << 16];
        values.extend(-600..600);
        values.extend((0..600).map(|i| (i * 0x1234_5679_i64) as i32));
        for features in CpuFeatures::each_path() {
            // Every value is in every lane once.
            for lanes in values.windows(TILE_ROWS) {
                let mut bytes = [77; TILE_ROWS + 16];
                // SAFETY: the kernel holds references only.
                unsafe {
                    dispatch(
                        features,
                        StoreLowBytes {
                            lanes: lanes.try_into().unwrap(),
                            bytes: &mut bytes,
                        },
                    );
                }
                for (lane, byte) in lanes.iter().zip(bytes) {
                    assert_eq!(byte.to_le_bytes()[0], lane.to_le_bytes()[0], "{features}, {lane}");
                }
                assert_eq!(bytes[TILE_ROWS..], [77; 16], "{features} writes beyond the lanes");
            }
        }
    }
}

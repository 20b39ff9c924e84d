//! [`conv_run`]: causal convolutions of a few rows.

use tokenmill_quant::CpuFeatures;

use crate::{
    activation::SILU,
    simd::{Kernel, Simd, dispatch},
};

use super::StridedRows;

/// The maximum number of rows that a value depends on.
pub const MAX_TAPS: usize = 16;

/// Some rows of a convolution, for some channels.
#[derive(Debug)]
pub struct ConvRun<'a> {
    /// `[n_taps, n]`, the newest row's factors last.
    pub weights: StridedRows<'a>,
    /// `[n]`; `None` means 0.
    pub bias: Option<&'a [f32]>,
    /// Whether SiLU is applied to the result.
    pub has_silu: bool,
    /// The `n_taps - 1` rows before the first, oldest first.
    pub past: StridedRows<'a>,
    /// `[n_rows, n]`.
    pub rows: StridedRows<'a>,
    /// `[n_rows, n]`.
    pub out: &'a mut [f32],
}

/// Writes `out[t][c] = bias[c] + sum_j weights[j][c] * row[t - (n_taps - 1) + j][c]`, summed in this order,
/// then SiLU.
///
/// # Panics
/// If the lengths contradict each other, or there are more than [`MAX_TAPS`] taps.
pub fn conv_run(features: CpuFeatures, n_taps: usize, run: ConvRun<'_>) {
    let ConvRun {
        weights,
        bias,
        has_silu,
        past,
        rows,
        out,
    } = run;
    let n = rows.width;
    let n_rows = out.len() / n;
    assert!(
        (1..=MAX_TAPS).contains(&n_taps)
            && [weights.width, past.width] == [n; 2]
            && bias.is_none_or(|bias| bias.len() == n)
            && weights.n_rows() >= n_taps
            && past.n_rows() >= n_taps - 1
            && rows.n_rows() >= n_rows
            && out.len() == n_rows * n,
        "rows of a convolution of {n_taps} taps over {n} channels"
    );
    let n_past = n_taps - 1;
    for (row_idx, out) in out.chunks_exact_mut(n).enumerate() {
        // The rows that the taps read.
        let mut read = [&[][..]; MAX_TAPS];
        for (tap, read) in read[..n_taps].iter_mut().enumerate() {
            *read = match (row_idx + tap).checked_sub(n_past) {
                Some(row_idx) => rows.row(row_idx),
                None => past.row(row_idx + tap),
            };
        }
        let kernel = ConvRow {
            weights,
            bias,
            read: &read[..n_taps],
            out,
        };
        // SAFETY: every row has as many values as the output.
        unsafe { dispatch(features, kernel) }
    }
    if has_silu {
        SILU.apply(features, out, None);
    }
}

struct ConvRow<'a> {
    weights: StridedRows<'a>,
    bias: Option<&'a [f32]>,
    read: &'a [&'a [f32]],
    out: &'a mut [f32],
}

impl Kernel for ConvRow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.out.len();
        let n_whole = n / S::LANES * S::LANES;
        for at in (0..n_whole).step_by(S::LANES) {
            // SAFETY: the vector is inside each row, and the processor has the features of `S`.
            unsafe {
                let mut sum = match self.bias {
                    Some(bias) => S::load_f32(bias.as_ptr().add(at)),
                    None => S::splat_f32(0.0),
                };
                for (tap, read) in self.read.iter().enumerate() {
                    let weight = S::load_f32(self.weights.ptr(tap).add(at));
                    sum = S::fma(weight, S::load_f32(read.as_ptr().add(at)), sum);
                }
                S::store_f32(self.out.as_mut_ptr().add(at), sum);
            }
        }
        for (c, out) in self.out.iter_mut().enumerate().skip(n_whole) {
            let start = self.bias.map_or(0.0, |bias| bias[c]);
            *out = (self.read.iter().enumerate()).fold(start, |sum, (tap, read)| {
                self.weights.row(tap)[c].mul_add(read[c], sum)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::values, *};

    /// Convolves `n_rows` rows, `n_each` at a time.
    fn run(features: CpuFeatures, [n_taps, n]: [usize; 2], has_bias: bool, n_each: usize) -> Vec<f32> {
        let n_rows = 7;
        let n_past = n_taps - 1;
        let (weights, bias) = (values(n_taps * n, 1), values(n, 2));
        // The rows before the first, and all others.
        let rows = values((n_past + n_rows) * (n + 2), 3);
        let mut out = vec![0.0; n_rows * n];
        for (i, out) in out.chunks_mut(n_each * n).enumerate() {
            let first = i * n_each * (n + 2);
            conv_run(
                features,
                n_taps,
                ConvRun {
                    weights: StridedRows::new(&weights, n, n),
                    bias: has_bias.then_some(&bias[..]),
                    has_silu: true,
                    past: StridedRows::new(&rows[first..], n + 2, n),
                    rows: StridedRows::new(&rows[first + n_past * (n + 2)..], n + 2, n),
                    out,
                },
            );
        }
        out
    }

    #[test]
    fn a_run_gives_the_bits_of_its_rows_one_at_a_time_on_every_instruction_set() {
        for shape in [[1, 1], [2, 3], [4, 16], [4, 61], [16, 8]] {
            for has_bias in [false, true] {
                let expected = run(CpuFeatures::scalar(), shape, has_bias, 1);
                for features in CpuFeatures::each_path() {
                    for n_each in [1, 3, 7] {
                        assert!(
                            run(features, shape, has_bias, n_each) == expected,
                            "{features}, {shape:?}, {n_each} rows at a time"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_value_is_the_weighted_sum_of_its_rows() {
        let mut out = [0.0; 2];
        conv_run(
            CpuFeatures::detect(),
            2,
            ConvRun {
                weights: StridedRows::new(&[10.0, 100.0], 1, 1),
                bias: Some(&[0.5]),
                has_silu: false,
                past: StridedRows::new(&[1.0], 1, 1),
                rows: StridedRows::new(&[2.0, 3.0], 1, 1),
                out: &mut out,
            },
        );
        assert_eq!(out, [210.5, 320.5]);
    }
}

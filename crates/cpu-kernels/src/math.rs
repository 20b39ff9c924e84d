//! [`exp`] and [`tanh`] for vectors.
//!
//! Softmax and activations feed all later operations, so these functions are as exact as the scalar
//! library's: within two units in the last place. Invariant: a lane depends on its own argument alone.

use crate::simd::{Simd, two_to};

/// The Taylor coefficients of `e^r`, from `1 / 7!` to `1 / 2!`. For `|r| <= ln(2) / 2` the omitted terms are
/// below `6e-9`, a tenth of a unit in the last place.
const EXP_TERMS: [f32; 6] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];

/// `ln 2` in two parts; the first has so few bits that its products with exponents are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Returns `e^x`: 0 from about -104 down, infinite from about 88.73 up, NaN for NaN.
///
/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe {
        // The order of operands keeps NaN.
        let x = S::min(S::splat_f32(89.0), S::max(S::splat_f32(-104.0), x));
        let (n, r, tail) = reduce::<S>(x);
        let one = S::splat_f32(1.0);
        let power = S::fma(S::fma(tail, r, one), r, one);
        S::mul_two_to(power, n)
    }
}

/// Returns `(n, r, t)` with `e^x = 2^n e^r` and `e^r = 1 + r + r² t`.
#[inline(always)]
unsafe fn reduce<S: Simd>(x: S::F) -> (S::I, S::F, S::F) {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let n = S::to_i32(S::mul(x, S::splat_f32(std::f32::consts::LOG2_E)));
        let n_float = S::to_f32(n);
        let r = S::fma(n_float, S::splat_f32(-LN_2_HIGH), x);
        let r = S::fma(n_float, S::splat_f32(-LN_2_LOW), r);
        let mut tail = S::splat_f32(EXP_TERMS[0]);
        for term in 1..EXP_TERMS.len() {
            tail = S::fma(tail, r, S::splat_f32(EXP_TERMS[term]));
        }
        (n, r, tail)
    }
}

/// Returns `tanh x`.
///
/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe {
        // t / (t + 2) with t = exp(2 x) - 1, which is 1 in single precision well before the limit.
        let one = S::splat_f32(1.0);
        let double = S::min(S::splat_f32(40.0), S::max(S::splat_f32(-40.0), S::add(x, x)));
        let t = exp_m1::<S>(double);
        S::div(t, S::add(S::add(t, one), one))
    }
}

/// Returns `e^x - 1` without cancellation near 0, for `|x| <= 40`.
#[inline(always)]
unsafe fn exp_m1<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let (n, r, tail) = reduce::<S>(x);
        // e^r - 1 = r + r² tail, and e^x - 1 = 2^n (e^r - 1) + (2^n - 1).
        let m1 = S::fma(S::mul(tail, r), r, r);
        let scale = two_to::<S>(n);
        S::fma(scale, m1, S::sub(scale, S::splat_f32(1.0)))
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;
    use crate::simd::{Kernel, dispatch};

    struct Map<'a> {
        is_tanh: bool,
        values: &'a mut [f32],
    }

    impl Kernel for Map<'_> {
        type Output = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for values in self.values.chunks_exact_mut(S::LANES) {
                // SAFETY: the chunk is one vector, and the processor has the features of `S`.
                unsafe {
                    let x = S::load_f32(values.as_ptr());
                    let y = if self.is_tanh { tanh::<S>(x) } else { exp::<S>(x) };
                    S::store_f32(values.as_mut_ptr(), y);
                }
            }
        }
    }

    fn map(features: CpuFeatures, is_tanh: bool, x: &[f32]) -> Vec<f32> {
        let mut values = x.to_vec();
        // SAFETY: the kernel holds references only.
        unsafe {
            dispatch(
                features,
                Map {
                    is_tanh,
                    values: &mut values,
                },
            );
        }
        values
    }

    /// Returns the error of `found` in units in the last place of `exact`'s binade.
    fn ulps(found: f32, exact: f64) -> f64 {
        let unit = f64::from(f32::EPSILON) * exact.abs().log2().floor().exp2();
        (f64::from(found) - exact).abs() / unit
    }

    fn arguments(limit: f32) -> Vec<f32> {
        let n = 1 << 16;
        let mut x: Vec<f32> = (0..n)
            .map(|i| (i as f32 / n as f32 * 2.0 - 1.0) * limit)
            .collect();
        // Small values, where differences cancel.
        for i in 0..n {
            x.push((i as f32 * 1e-3).exp2().recip().max(1e-30) * if i % 2 == 0 { 1.0 } else { -1.0 });
        }
        x
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let x = arguments(87.0);
        for features in CpuFeatures::each_path() {
            for (x, y) in x.iter().zip(map(features, false, &x)) {
                let error = ulps(y, f64::from(*x).exp());
                assert!(error < 1.5, "{features}: exp({x}) = {y}, off by {error}");
            }
        }
    }

    #[test]
    fn exp_keeps_its_limits() {
        let mut x = [0.0f32; 16];
        x[..7].copy_from_slice(&[
            f32::NEG_INFINITY,
            -200.0,
            -104.0,
            88.8,
            f32::INFINITY,
            f32::NAN,
            -100.0,
        ]);
        for features in CpuFeatures::each_path() {
            let y = map(features, false, &x);
            assert_eq!(y[..5], [0.0, 0.0, 0.0, f32::INFINITY, f32::INFINITY]);
            assert!(y[5].is_nan() && y[7..].iter().all(|y| *y == 1.0));
            assert!((f64::from(y[6]) - (-100.0f64).exp()).abs() <= 1.5e-45);
        }
    }

    #[test]
    fn tanh_is_within_four_units_in_the_last_place() {
        let x = arguments(12.0);
        for features in CpuFeatures::each_path() {
            for (x, y) in x.iter().zip(map(features, true, &x)) {
                let error = if *x == 0.0 {
                    0.0
                } else {
                    ulps(y, f64::from(*x).tanh())
                };
                assert!(error < 4.0, "{features}: tanh({x}) = {y}, off by {error}");
            }
            assert_eq!(map(features, true, &[1e9; 16]), [1.0; 16]);
            assert_eq!(map(features, true, &[-1e9; 16]), [-1.0; 16]);
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let x = arguments(87.0);
        for is_tanh in [false, true] {
            let expected = map(CpuFeatures::scalar(), is_tanh, &x);
            for features in CpuFeatures::each_path() {
                assert!(map(features, is_tanh, &x) == expected, "{features}");
            }
        }
    }
}

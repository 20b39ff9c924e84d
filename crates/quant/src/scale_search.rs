//! The searches for scales and minima in the encoders of the K-formats.
//!
//! They are the algorithms of ggml's reference quantizer: try a range of scales, keep the one with the least
//! weighted squared error. Several formats share each. Invariant: every float operation happens in the
//! reference's order and precision, without fused multiply-add, because a file quantized here must equal one
//! quantized there to the bit.
//!
//! Source: ggml-org/llama.cpp, `ggml/src/ggml-quants.c` (`nearest_int`, `make_qx_quants`, `make_q3_quants`,
//! `make_qkx2_quants`, `make_qkx3_quants`, `make_qp_quants`).

/// Groups with only smaller values count as all zero.
pub(crate) const GROUP_MAX_EPS: f32 = 1e-15;

/// Rounds to the nearest integer, ties to even, for magnitudes below 2^22: the sum with 1.5 * 2^23 has no
/// room for a fraction, so the rounded integer is in the low bits of its mantissa.
#[inline(always)]
pub(crate) fn nearest_int(value: f32) -> i32 {
    let bits = (value + 12_582_912.0).to_bits();
    (bits & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Returns the value of largest magnitude, the first among equals, as (magnitude, value).
pub(crate) fn greatest_magnitude(values: &[f32]) -> (f32, f32) {
    let mut greatest = (0.0, 0.0);
    for &x in values {
        if x.abs() > greatest.0 {
            greatest = (x.abs(), x);
        }
    }
    greatest
}

/// Weighted sums over a group: weight * value * quant, and weight * quant^2. Their quotient is the best scale
/// for these quants.
#[derive(Clone, Copy, Default)]
struct Fit {
    value_quant: f32,
    quant_quant: f32,
}

impl Fit {
    fn add(&mut self, weight: f32, value: f32, quant: f32) {
        self.value_quant += weight * value * quant;
        self.quant_quant += weight * quant * quant;
    }

    fn without(self, weight: f32, value: f32, quant: f32) -> Self {
        Self {
            value_quant: self.value_quant - weight * value * quant,
            quant_quant: self.quant_quant - weight * quant * quant,
        }
    }

    fn scale(self) -> f32 {
        self.value_quant / self.quant_quant
    }
}

/// Returns the default weights of values: their squares.
pub(crate) fn squares<const N: usize>(values: &[f32; N]) -> [f32; N] {
    values.map(|x| x * x)
}

/// Number of scales that [`search_symmetric`] tries: nine smaller than the initial one, that one, and nine
/// larger.
const N_TRIES: usize = 19;
/// Index of the initial one.
const OBVIOUS: usize = 9;
/// The same number, rounded up to whole vectors.
const N_LANES: usize = 20;

/// Finds a signed scale for `-bound..bound` by trying 18 others around the initial one. `quants` are written
/// with `bound` added; for a group of zeros they are 0.
pub(crate) fn search_symmetric(bound: i32, values: &[f32], weights: &[f32], quants: &mut [i8]) -> f32 {
    let (magnitude, extreme) = greatest_magnitude(values);
    if magnitude < GROUP_MAX_EPS {
        quants.fill(0);
        return 0.0;
    }
    let quant = |inverse: f32, x: f32| nearest_int(inverse * x).clamp(-bound, bound - 1);
    let inverse_of =
        |try_idx: usize| -(bound as f32 + 0.1 * (try_idx as i32 - OBVIOUS as i32) as f32) / extreme;
    let inverses: [f32; N_LANES] = std::array::from_fn(inverse_of);
    // All scales are tried in parallel: each sum keeps its order, and the sums of several scales form a
    // vector.
    let (mut value_quants, mut quant_quants) = ([0.0; N_LANES], [0.0; N_LANES]);
    for (&x, &weight) in values.iter().zip(weights) {
        let weighted = weight * x;
        for lane in 0..N_LANES {
            let quant = quant(inverses[lane], x) as f32;
            value_quants[lane] += weighted * quant;
            quant_quants[lane] += weight * quant * quant;
        }
    }
    let fit = |try_idx: usize| Fit {
        value_quant: value_quants[try_idx],
        quant_quant: quant_quants[try_idx],
    };

    let mut best_inverse = inverses[OBVIOUS];
    let first = fit(OBVIOUS);
    let mut scale = if first.quant_quant == 0.0 {
        0.0
    } else {
        first.scale()
    };
    let mut best = scale * first.value_quant;
    for try_idx in (0..N_TRIES).filter(|&try_idx| try_idx != OBVIOUS) {
        let fit = fit(try_idx);
        if fit.quant_quant > 0.0 && fit.value_quant * fit.value_quant > best * fit.quant_quant {
            best_inverse = inverses[try_idx];
            scale = fit.scale();
            best = scale * fit.value_quant;
        }
    }
    for (q, &x) in quants.iter_mut().zip(values) {
        *q = (quant(best_inverse, x) + bound) as i8;
    }
    scale
}

/// Finds a signed scale for `-bound..bound` by moving one quant at a time while that lowers the error. Each value is
/// weighted by its square. `quants` are written with `bound` added.
pub(crate) fn search_coordinates(bound: i32, values: &[f32], quants: &mut [i8]) -> f32 {
    let (magnitude, extreme) = greatest_magnitude(values);
    if magnitude < GROUP_MAX_EPS {
        quants.fill(0);
        return 0.0;
    }
    let inverse = -bound as f32 / extreme;
    let mut fit = Fit::default();
    for (q, &x) in quants.iter_mut().zip(values) {
        *q = nearest_int(inverse * x).clamp(-bound, bound - 1) as i8;
        fit.add(x * x, x, f32::from(*q));
    }
    for _ in 0..5 {
        let mut is_changed = false;
        for (q, &x) in quants.iter_mut().zip(values) {
            let weight = x * x;
            let mut moved = fit.without(weight, x, f32::from(*q));
            if moved.value_quant <= 0.0 || moved.value_quant.is_nan() {
                continue;
            }
            let new = nearest_int(x * moved.quant_quant / moved.value_quant).clamp(-bound, bound - 1);
            if new == i32::from(*q) {
                continue;
            }
            moved.add(weight, x, new as f32);
            let is_better = moved.value_quant * moved.value_quant * fit.quant_quant
                > fit.value_quant * fit.value_quant * moved.quant_quant;
            if moved.quant_quant > 0.0 && is_better {
                *q = new as i8;
                fit = moved;
                is_changed = true;
            }
        }
        if !is_changed {
            break;
        }
    }
    for q in quants {
        *q += bound as i8;
    }
    if fit.quant_quant > 0.0 { fit.scale() } else { 0.0 }
}

/// Finds a scale for quants in `0..=max_quant` of non-negative values: the best of nine around the initial
/// one; then one quant at a time is moved while that lowers the error.
///
/// If a value is negative nevertheless, its quant wraps around, as in the reference.
pub(crate) fn search_positive(max_quant: i32, values: &[f32], weights: &[f32], quants: &mut [u8]) -> f32 {
    let max = values.iter().fold(0.0, |max, &x| if max > x { max } else { x });
    if max < GROUP_MAX_EPS {
        quants.fill(0);
        return 0.0;
    }
    let mut inverse = max_quant as f32 / max;
    let mut best = squared_error(values, weights, 1.0 / inverse, |x| {
        f32::from(nearest_int(inverse * x) as u8)
    });
    for step in (-4..=4).filter(|&step| step != 0) {
        let tried = (0.1 * step as f32 + max_quant as f32) / max;
        let error = squared_error(values, weights, 1.0 / tried, |x| {
            nearest_int(tried * x).min(max_quant) as f32
        });
        if error < best {
            (best, inverse) = (error, tried);
        }
    }
    let mut fit = Fit::default();
    for ((q, &x), &weight) in quants.iter_mut().zip(values).zip(weights) {
        let quant = nearest_int(inverse * x).min(max_quant);
        *q = quant as u8;
        fit.add(weight, x, quant as f32);
    }
    for _ in 0..5 {
        let mut is_changed = false;
        for ((q, &x), &weight) in quants.iter_mut().zip(values).zip(weights) {
            let mut moved = fit.without(weight, x, f32::from(*q));
            if !(moved.value_quant > 0.0 && moved.quant_quant > 0.0) {
                continue;
            }
            let new = nearest_int(x * moved.quant_quant / moved.value_quant).min(max_quant);
            if new == i32::from(*q) {
                continue;
            }
            moved.add(weight, x, new as f32);
            if moved.value_quant * moved.value_quant * fit.quant_quant
                > fit.value_quant * fit.value_quant * moved.quant_quant
            {
                *q = new as u8;
                fit = moved;
                is_changed = true;
            }
        }
        if !is_changed {
            break;
        }
    }
    if fit.quant_quant > 0.0 { fit.scale() } else { 0.0 }
}

/// Returns the weighted squared error of quants with a scale.
#[inline(always)]
fn squared_error(values: &[f32], weights: &[f32], scale: f32, quant: impl Fn(f32) -> f32) -> f32 {
    let mut error = 0.0;
    for (&x, &weight) in values.iter().zip(weights) {
        let difference = x - scale * quant(x);
        error += weight * difference * difference;
    }
    error
}

/// The scales that [`search_with_min`] tries, and its error measure.
pub(crate) struct MinSearch {
    /// The largest quant.
    pub(crate) max_quant: i32,
    /// Offset of the first inverse scale, relative to `max_quant`.
    pub(crate) first: f32,
    /// Difference between consecutive ones.
    pub(crate) step: f32,
    /// Number of scales after the first.
    pub(crate) n_steps: i32,
    /// The measure of deviations.
    pub(crate) error: ErrorMeasure,
    /// How quants are limited to their range.
    pub(crate) rounding: Rounding,
}

impl MinSearch {
    /// Returns the search for weights from an importance matrix.
    pub(crate) const fn weighted(max_quant: i32) -> Self {
        Self {
            max_quant,
            first: -0.9,
            step: 0.05,
            n_steps: 36,
            error: ErrorMeasure::Squared,
            rounding: Rounding::OfClamped,
        }
    }
}

/// How quants are limited to their range. The two differ for values too large for [`nearest_int`].
#[derive(Clone, Copy)]
pub(crate) enum Rounding {
    /// Round, then clamp.
    ThenClamp,
    /// Clamp, then round.
    OfClamped,
}

/// The measure of deviations.
#[derive(Clone, Copy)]
pub(crate) enum ErrorMeasure {
    /// The magnitude.
    Absolute,
    /// The square.
    Squared,
}

/// A scale and a minimum: the value of quant `q` is `scale * q - min`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ScaleMin {
    pub(crate) scale: f32,
    pub(crate) min: f32,
}

/// Finds a scale and a minimum for quants in `0..=max_quant`. The stored minimum is never negative, so zero
/// stays representable. There are `N` values, weighted by `weights`.
pub(crate) fn search_with_min<const N: usize>(
    search: &MinSearch,
    values: &[f32; N],
    weights: &[f32; N],
    quants: &mut [u8],
) -> ScaleMin {
    let max_quant = search.max_quant;
    let (mut min, mut max) = (values[0], values[0]);
    let mut sum_w = weights[0];
    let mut sum_x = sum_w * values[0];
    for (&x, &w) in values.iter().zip(weights).skip(1) {
        if x < min {
            min = x;
        }
        if x > max {
            max = x;
        }
        sum_w += w;
        sum_x += w * x;
    }
    if min > 0.0 {
        min = 0.0;
    }
    if max == min {
        quants.fill(0);
        return ScaleMin {
            scale: 0.0,
            min: -min,
        };
    }
    let range = max - min;
    // The reference quantizes against the best minimum so far, which a better fit below changes.
    let quantize = |inverse: f32, min: f32| {
        let mut tried = [0; N];
        for (q, &x) in tried.iter_mut().zip(values) {
            let scaled = inverse * (x - min);
            *q = match search.rounding {
                Rounding::ThenClamp => nearest_int(scaled).clamp(0, max_quant) as u8,
                Rounding::OfClamped if scaled > 0.0 => nearest_int(scaled.min(max_quant as f32)) as u8,
                Rounding::OfClamped => 0,
            };
        }
        tried
    };
    let error = |tried: &[u8; N], scale: f32, min: f32| {
        let mut error = 0.0;
        for ((&q, &x), &w) in tried.iter().zip(values).zip(weights) {
            let deviation = scale * f32::from(q) + min - x;
            error += w * match search.error {
                ErrorMeasure::Absolute => deviation.abs(),
                ErrorMeasure::Squared => deviation * deviation,
            };
        }
        error
    };

    let inverse = max_quant as f32 / range;
    let mut scale = 1.0 / inverse;
    let mut best = quantize(inverse, min);
    let mut best_error = error(&best, scale, min);
    for step in 0..=search.n_steps {
        let inverse = (search.first + search.step * step as f32 + max_quant as f32) / (max - min);
        let tried = quantize(inverse, min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
        for ((&q, &x), &w) in tried.iter().zip(values).zip(weights) {
            let l = f32::from(q);
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if this_min > 0.0 {
                this_min = 0.0;
                this_scale = sum_xl / sum_l2;
            }
            let this_error = error(&tried, this_scale, this_min);
            if this_error < best_error {
                best = tried;
                best_error = this_error;
                scale = this_scale;
                min = this_min;
            }
        }
    }
    quants.copy_from_slice(&best);
    ScaleMin { scale, min: -min }
}

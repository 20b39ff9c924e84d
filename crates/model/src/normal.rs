//! [`normal_quantile`]: the quantile function of the normal distribution.
//!
//! Folders of networks with sparse activations give the fraction of zeros, GGUF files the quantile.

/// Returns the quantile of the standard normal distribution for a probability from 0 (negative infinity) to
/// 1.
pub(crate) fn normal_quantile(share: f32) -> f32 {
    if share <= 0.0 {
        return f32::NEG_INFINITY;
    }
    if share >= 1.0 {
        return f32::INFINITY;
    }
    // The distribution function is increasing, and no f32 above 0 has a quantile outside these bounds.
    let (mut low, mut high) = (-40.0_f64, 40.0_f64);
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if probability_below(middle) < f64::from(share) {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high) as f32
}

/// The distribution function: a series near 0, a continued fraction in the tails.
fn probability_below(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() < 3.0 {
        // x + x^3 / 3 + x^5 / (3 * 5) + ...
        let (mut term, mut sum) = (x, x);
        for n in 1..100 {
            term *= x * x / f64::from(2 * n + 1);
            sum += term;
        }
        return 0.5 + density * sum;
    }
    let fraction = (1..200)
        .rev()
        .fold(x.abs(), |rest, n| x.abs() + f64::from(n) / rest);
    let tail = density / fraction;
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        // Near 1, adjacent f32 probabilities differ by 6e-8, and their quantiles by that divided by the
        // density.
        for (share, expected, tolerance) in [
            (0.5, 0.0, 1e-7),
            (0.95, 1.644_853_6, 1e-6),
            (0.975, 1.959_964, 2e-6),
            (0.05, -1.644_853_6, 1e-6),
            (0.999_968_3, 4.0, 1e-3),
            (1e-10, -6.361_341, 1e-5),
        ] {
            let found = normal_quantile(share);
            assert!((found - expected).abs() < tolerance, "{share}: {found}");
        }
        assert_eq!(normal_quantile(0.0), f32::NEG_INFINITY);
        assert_eq!(normal_quantile(1.0), f32::INFINITY);
    }
}

//! [`LayerOperations`]: operations that few networks need.
//!
//! Invariant: rows do not depend on each other.

use crate::{BackendError, Columns, Memory, Routed};

/// Operations that only some networks use.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the documentation of `Backend` says"
)]
pub trait LayerOperations: Memory {
    /// Copies columns: `output[r] = input[r][first..first + width]`, `[n_rows, width]`.
    fn take_columns(
        &mut self,
        input: Columns<'_, Self::Buffer>,
        n_rows: usize,
        width: usize,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Applies [`Xielu`] in place, `[n_rows, width]`.
    fn xielu(
        &mut self,
        xielu: Xielu,
        n_rows: usize,
        width: usize,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Keeps only the part of each row above `cutoff` standard deviations over its mean, in place:
    /// `x = max(x - (mean + cutoff * sqrt(variance)), 0)`, `[n_rows, width]`. The variance is the mean of the squared
    /// distances from the mean.
    fn cut_below(
        &mut self,
        cutoff: f32,
        n_rows: usize,
        width: usize,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Multiplies the row of each choice by the choice's weight, `[n_choices, width]`.
    fn weigh_choices(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &mut Self::Buffer,
    ) -> Result<(), BackendError>;
}

/// An activation with learned parameters: `alpha_p x^2 + beta x` above 0,
/// `alpha_n (exp(min(x, eps)) - 1 - x) + beta x` elsewhere.
///
/// Source: "Deriving Activation Functions Using Integration", Huang and Schlag 2024.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Factor of the square above 0.
    pub alpha_p: f32,
    /// Factor of the exponential part elsewhere.
    pub alpha_n: f32,
    /// Factor of the linear part.
    pub beta: f32,
    /// Upper bound of the exponential's argument.
    pub eps: f32,
}

impl Xielu {
    /// Converts trained parameters, which `softplus` makes positive.
    pub fn from_trained(alpha_p: f32, alpha_n: f32, beta: f32, eps: f32) -> Self {
        let softplus = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
        Self {
            alpha_p: softplus(alpha_p),
            alpha_n: beta + softplus(alpha_n),
            beta,
            eps,
        }
    }

    /// Applies the function.
    pub fn apply(&self, x: f32) -> f32 {
        if x > 0.0 {
            self.alpha_p * x * x + self.beta * x
        } else {
            (x.min(self.eps).exp_m1() - x) * self.alpha_n + self.beta * x
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xielu_has_its_known_values() {
        // softplus(0) is ln 2.
        let xielu = Xielu::from_trained(0.0, 0.0, 0.5, -1e-6);
        let ln_2 = std::f32::consts::LN_2;
        for (x, expected) in [
            (2.0, 4.0 * ln_2 + 1.0),
            (0.0, -1e-6 * (0.5 + ln_2)),
            (-1.0, (-1.0_f32).exp() * (0.5 + ln_2) - 0.5),
            (-100.0, 99.0 * (0.5 + ln_2) - 50.0),
        ] {
            assert!((xielu.apply(x) - expected).abs() < 1e-5, "{x}");
        }
        assert!(xielu.apply(f32::NAN).is_nan());
        let bounded = Xielu::from_trained(0.0, 0.0, 0.5, -0.25);
        for x in [0.0_f32, -0.1] {
            let expected = ((-0.25_f32).exp() - 1.0 - x) * (0.5 + ln_2) + 0.5 * x;
            assert!((bounded.apply(x) - expected).abs() < 1e-6, "{x}");
        }
    }
}

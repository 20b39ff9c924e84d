//! Activation functions, each by its definition.
//!
//! Invariant: exact to f32, whatever table another program uses.

use tokenmill_backend::Activation;

use super::router::sigmoid;

pub(super) fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluErf => {
            (f64::from(x) * 0.5 * (1.0 + erf(f64::from(x) / std::f64::consts::SQRT_2))) as f32
        }
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluQuick => x * sigmoid(Activation::CLIPPED_ALPHA * x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Identity => x,
        Activation::ClippedSwiglu => {
            let x = x.min(Activation::CLIPPED_LIMIT);
            x * sigmoid(Activation::CLIPPED_ALPHA * x)
        }
    }
}

/// Returns the factor of a gate's activation.
pub(super) fn other_factor(activation: Activation, up: f32) -> f32 {
    match activation {
        Activation::ClippedSwiglu => up.clamp(-Activation::CLIPPED_LIMIT, Activation::CLIPPED_LIMIT) + 1.0,
        _ => up,
    }
}

/// Returns the error function, to about 1e-12: its Taylor series, or 1 if that is as close.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-17 * sum.abs() {
        n += 1.0;
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

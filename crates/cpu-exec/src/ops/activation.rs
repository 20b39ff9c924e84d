//! [`activate`] and [`gated`]: the nonlinear functions of feed-forward layers.
//!
//! They are in one place so that the fused form in [`linear_gated`](crate::linear_gated) and the plain ones
//! agree to the bit.

use tokenmill_backend::Activation;
use tokenmill_cpu_kernels::{
    ActivationOps, CLIPPED_SWIGLU, GELU_ERF, GELU_QUICK, GELU_TANH, IDENTITY, RELU, RELU_SQUARED, SIGMOID,
    SILU,
};

use crate::Host;

/// The number of values per chunk: about what one thread computes in the time that it takes to wake another.
const CHUNK_LEN: usize = 4096;

/// Returns the kernels of an activation.
pub(crate) fn activation_ops(activation: Activation) -> &'static ActivationOps {
    match activation {
        Activation::Silu => &SILU,
        Activation::GeluErf => &GELU_ERF,
        Activation::GeluTanh => &GELU_TANH,
        Activation::GeluQuick => &GELU_QUICK,
        Activation::Relu => &RELU,
        Activation::ReluSquared => &RELU_SQUARED,
        Activation::Sigmoid => &SIGMOID,
        Activation::Identity => &IDENTITY,
        Activation::ClippedSwiglu => &CLIPPED_SWIGLU,
    }
}

/// Applies `activation` to each value.
pub fn activate(host: &Host, activation: Activation, x: &mut [f32]) {
    host.pool().for_each_chunk(x, CHUNK_LEN, |_, chunk| {
        activation_ops(activation).apply(host.features(), chunk, None);
    });
}

/// Replaces `gate` by `activation(gate) * up`, value for value.
///
/// # Panics
/// If the lengths differ.
pub fn gated(host: &Host, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "lengths of gate and up");
    host.pool().for_each_chunk(gate, CHUNK_LEN, |chunk_idx, chunk| {
        let up = &up[chunk_idx * CHUNK_LEN..];
        activation_ops(activation).apply(host.features(), chunk, Some(up));
    });
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;

    #[track_caller]
    fn check(activation: Activation, x: f32, expected: f32) {
        let mut values = vec![x; 5000];
        activate(
            &Host::new(2, CpuFeatures::detect()).unwrap(),
            activation,
            &mut values,
        );
        assert!(
            values.iter().all(|value| (value - expected).abs() < 1e-6),
            "{} vs {expected}",
            values[0]
        );
    }

    #[test]
    fn activations_have_their_known_values() {
        check(Activation::Silu, 1.0, 0.731_058_6);
        check(Activation::Silu, -100.0, 0.0);
        check(Activation::GeluTanh, 1.0, 0.841_192);
        check(Activation::GeluErf, 1.0, 0.841_344_8);
        check(Activation::GeluErf, -2.0, -0.045_500_3);
        check(Activation::GeluQuick, 1.0, 0.845_795_8);
        check(Activation::GeluQuick, 100.0, 100.0);
        check(Activation::Relu, -3.0, 0.0);
        check(Activation::ReluSquared, 3.0, 9.0);
        check(Activation::Sigmoid, 1.0, 0.731_058_6);
        check(Activation::Sigmoid, -100.0, 0.0);
        check(Activation::Identity, -3.0, -3.0);
        check(Activation::ClippedSwiglu, 1.0, 0.845_795_8);
        check(Activation::ClippedSwiglu, 100.0, 6.999_953_2);
    }

    #[test]
    fn a_value_does_not_depend_on_its_place_or_the_instruction_set() {
        let values: Vec<f32> = (0..37).map(|i| (i as f32 - 18.0) * 0.7).collect();
        let up: Vec<f32> = values.iter().rev().copied().collect();
        for activation in [
            Activation::Silu,
            Activation::GeluTanh,
            Activation::GeluErf,
            Activation::GeluQuick,
            Activation::Relu,
            Activation::ReluSquared,
            Activation::Sigmoid,
            Activation::Identity,
            Activation::ClippedSwiglu,
        ] {
            let mut expected = values.clone();
            let host = Host::new(1, CpuFeatures::scalar()).unwrap();
            gated(&host, activation, &mut expected, &up);
            for features in CpuFeatures::each_path() {
                let host = Host::new(1, features).unwrap();
                for i in 0..values.len() {
                    let mut one = [values[i]];
                    gated(&host, activation, &mut one, &up[i..=i]);
                    assert_eq!(one[0], expected[i], "{activation:?} {features}");
                }
                let mut all = values.clone();
                gated(&host, activation, &mut all, &up);
                assert_eq!(all, expected, "{activation:?} {features}");
            }
        }
    }
}

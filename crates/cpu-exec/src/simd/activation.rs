//! [`apply`]: activations, and their products with a second input, for vectors; [`soft_cap`], which is one more function of
//! its kind.
//!
//! Separate from the operations so that they and the fused product of gate and up share it. Invariant: a value depends
//! on its own inputs alone, not on its place in a vector.

use tokenmill_backend::Activation;
use tokenmill_quant::CpuFeatures;

use super::{Kernel, Simd, TILE_ROWS, dispatch, math};

/// Replaces every value of `gate` by its activation, times that of `up` where there is one.
pub(crate) fn apply(features: CpuFeatures, activation: Activation, gate: &mut [f32], up: Option<&[f32]>) {
    if let Some(up) = up {
        assert!(up.len() >= gate.len(), "lengths of gate and up");
    }
    // SAFETY: the kernel holds references only, and `up` is as long as `gate`.
    unsafe { dispatch(features, Apply { activation, gate, up }) }
}

struct Apply<'a> {
    activation: Activation,
    gate: &'a mut [f32],
    up: Option<&'a [f32]>,
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { activation, gate, up } = self;
        let n_whole = gate.len() / S::LANES * S::LANES;
        // SAFETY: every vector is inside its slice or array, and the features of `S` are there.
        unsafe {
            for at in (0..n_whole).step_by(S::LANES) {
                let ptr = gate.as_mut_ptr().add(at);
                let x = S::load_f32(ptr);
                let y = if let Some(up) = up {
                    gated::<S>(activation, x, Some(S::load_f32(up.as_ptr().add(at))))
                } else {
                    gated::<S>(activation, x, None)
                };
                S::store_f32(ptr, y);
            }
            let rest = &mut gate[n_whole..];
            let (mut x, mut y) = ([0.0; TILE_ROWS], [0.0; TILE_ROWS]);
            x[..rest.len()].copy_from_slice(rest);
            let lanes = S::load_f32(x.as_ptr());
            let activated = if let Some(up) = up {
                y[..rest.len()].copy_from_slice(&up[n_whole..][..rest.len()]);
                gated::<S>(activation, lanes, Some(S::load_f32(y.as_ptr())))
            } else {
                gated::<S>(activation, lanes, None)
            };
            S::store_f32(x.as_mut_ptr(), activated);
            rest.copy_from_slice(&x[..rest.len()]);
        }
    }
}

/// Replaces every value by `cap * tanh(value / cap)`.
pub(crate) fn soft_cap(features: CpuFeatures, x: &mut [f32], cap: f32) {
    // SAFETY: the kernel holds references only.
    unsafe { dispatch(features, SoftCap { x, cap }) }
}

struct SoftCap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Kernel for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for x in self.x.chunks_mut(S::LANES) {
            let mut lanes = [0.0; TILE_ROWS];
            lanes[..x.len()].copy_from_slice(x);
            // SAFETY: the array holds a vector, and the features of `S` are there.
            unsafe {
                let cap = S::splat_f32(self.cap);
                let y = S::mul(math::tanh::<S>(S::div(S::load_f32(lanes.as_ptr()), cap)), cap);
                S::store_f32(lanes.as_mut_ptr(), y);
            }
            x.copy_from_slice(&lanes[..x.len()]);
        }
    }
}

#[inline(always)]
unsafe fn gated<S: Simd>(activation: Activation, x: S::F, up: Option<S::F>) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let y = activated::<S>(activation, x);
        up.map_or(y, |up| S::mul(y, up))
    }
}

#[inline(always)]
unsafe fn activated<S: Simd>(activation: Activation, x: S::F) -> S::F {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    // SAFETY: the caller vouches for the features.
    unsafe {
        let one = S::splat_f32(1.0);
        let zero = S::splat_f32(0.0);
        match activation {
            Activation::Silu => silu::<S>(x),
            Activation::GeluTanh => {
                let cube = S::fma(S::mul(S::splat_f32(0.044_715), x), x, one);
                let inner = S::mul(S::mul(S::splat_f32(SQRT_2_OVER_PI), x), cube);
                S::mul(S::mul(S::splat_f32(0.5), x), S::add(one, math::tanh::<S>(inner)))
            }
            Activation::GeluErf => {
                let mut lanes = [0.0; TILE_ROWS];
                S::store_f32(lanes.as_mut_ptr(), x);
                for lane in 0..S::LANES {
                    lanes[lane] = gelu_erf(lanes[lane]);
                }
                S::load_f32(lanes.as_ptr())
            }
            // The order of operands keeps NaN.
            Activation::Relu => S::max(zero, x),
            Activation::ReluSquared => S::mul(S::max(zero, x), S::max(zero, x)),
        }
    }
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let e = math::exp::<S>(S::mul(x, S::splat_f32(-1.0)));
        S::div(x, S::add(S::splat_f32(1.0), e))
    }
}

/// [`Activation::GeluErf`] of one value.
fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// The error function, to within 1.5e-7.
///
/// Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
fn erf(x: f32) -> f32 {
    let z = f64::from(x.abs());
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let polynomial = t
        * (0.254_829_592
            + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    (1.0 - polynomial * (-z * z).exp()).copysign(f64::from(x)) as f32
}

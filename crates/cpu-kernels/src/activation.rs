//! [`ActivationOps`]: vectorized activations and their products with a second input; [`soft_cap`], another
//! function of this kind.
//!
//! A function is a type with its formula, and a row of the table. Invariant: a value depends on its own
//! inputs alone, not on its place in a vector.

use tokenmill_quant::CpuFeatures;

use crate::{
    math,
    simd::{Kernel, Simd, TILE_ROWS, dispatch},
};

/// The kernel of an activation.
#[derive(Debug)]
pub struct ActivationOps {
    apply: fn(CpuFeatures, &mut [f32], Option<&[f32]>),
}

/// `x / (1 + exp(-x))`.
pub static SILU: ActivationOps = ActivationOps::of::<Silu>();
/// `x * (1 + erf(x / sqrt(2))) / 2`.
pub static GELU_ERF: ActivationOps = ActivationOps::of::<GeluErf>();
/// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2`.
pub static GELU_TANH: ActivationOps = ActivationOps::of::<GeluTanh>();
/// `x / (1 + exp(-1.702 x))`.
pub static GELU_QUICK: ActivationOps = ActivationOps::of::<GeluQuick>();
/// `max(x, 0)`.
pub static RELU: ActivationOps = ActivationOps::of::<Relu>();
/// `max(x, 0)^2`.
pub static RELU_SQUARED: ActivationOps = ActivationOps::of::<ReluSquared>();
/// `1 / (1 + exp(-x))`.
pub static SIGMOID: ActivationOps = ActivationOps::of::<Sigmoid>();
/// `x`.
pub static IDENTITY: ActivationOps = ActivationOps::of::<Identity>();
/// `min(x, 7) / (1 + exp(-1.702 min(x, 7)))`; the other factor is `clamp(up, -7, 7) + 1`.
pub static CLIPPED_SWIGLU: ActivationOps = ActivationOps::of::<ClippedSwiglu>();

impl ActivationOps {
    const fn of<A: Activation>() -> Self {
        Self {
            // SAFETY: the kernel holds references only, and `up` is as long as `gate`, as `apply` checks.
            apply: |features, gate, up| unsafe {
                dispatch(
                    features,
                    Apply::<A> {
                        gate,
                        up,
                        activation: std::marker::PhantomData,
                    },
                );
            },
        }
    }

    /// Replaces every value of `gate` by its activation, times the value of `up` if there is one.
    ///
    /// # Panics
    /// If `up` is shorter.
    pub fn apply(&self, features: CpuFeatures, gate: &mut [f32], up: Option<&[f32]>) {
        if let Some(up) = up {
            assert!(up.len() >= gate.len(), "lengths of gate and up");
        }
        (self.apply)(features, gate, up);
    }
}

/// A function of a value.
trait Activation {
    /// Returns the function of the values `x`.
    ///
    /// # Safety
    /// The processor has the features of `S`.
    unsafe fn of<S: Simd>(x: S::F) -> S::F;

    /// Returns the factor of the values.
    ///
    /// # Safety
    /// As for [`Activation::of`].
    #[inline(always)]
    unsafe fn other_factor<S: Simd>(up: S::F) -> S::F {
        up
    }
}

struct Apply<'a, A> {
    gate: &'a mut [f32],
    up: Option<&'a [f32]>,
    activation: std::marker::PhantomData<A>,
}

impl<A: Activation> Kernel for Apply<'_, A> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { gate, up, .. } = self;
        let n_whole = gate.len() / S::LANES * S::LANES;
        // SAFETY: every vector is inside its slice or array, and the processor has the features of `S`.
        unsafe {
            for at in (0..n_whole).step_by(S::LANES) {
                let ptr = gate.as_mut_ptr().add(at);
                let mut x = A::of::<S>(S::load_f32(ptr));
                if let Some(up) = up {
                    x = S::mul(x, A::other_factor::<S>(S::load_f32(up.as_ptr().add(at))));
                }
                S::store_f32(ptr, x);
            }
            let rest = &mut gate[n_whole..];
            let (mut x, mut y) = ([0.0; TILE_ROWS], [0.0; TILE_ROWS]);
            x[..rest.len()].copy_from_slice(rest);
            let mut lanes = A::of::<S>(S::load_f32(x.as_ptr()));
            if let Some(up) = up {
                y[..rest.len()].copy_from_slice(&up[n_whole..][..rest.len()]);
                lanes = S::mul(lanes, A::other_factor::<S>(S::load_f32(y.as_ptr())));
            }
            S::store_f32(x.as_mut_ptr(), lanes);
            rest.copy_from_slice(&x[..rest.len()]);
        }
    }
}

/// Replaces every value by `cap * tanh(value / cap)`.
pub fn soft_cap(features: CpuFeatures, x: &mut [f32], cap: f32) {
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
            // SAFETY: the array holds a vector, and the processor has the features of `S`.
            unsafe {
                let cap = S::splat_f32(self.cap);
                let y = S::mul(math::tanh::<S>(S::div(S::load_f32(lanes.as_ptr()), cap)), cap);
                S::store_f32(lanes.as_mut_ptr(), y);
            }
            x.copy_from_slice(&lanes[..x.len()]);
        }
    }
}

struct Silu;
impl Activation for Silu {
    #[inline(always)]
    unsafe fn of<S: Simd>(x: S::F) -> S::F {
        // SAFETY: the caller vouches for the features.
        unsafe {
            let e = math::exp::<S>(S::mul(x, S::splat_f32(-1.0)));
            S::div(x, S::add(S::splat_f32(1.0), e))
        }
    }
}

struct GeluTanh;
impl Activation for GeluTanh {
    #[inline(always)]
    unsafe fn of<S: Simd>(x: S::F) -> S::F {
        const SQRT_2_OVER_PI: f32 = 0.797_884_6;
        // SAFETY: the caller vouches for the features.
        unsafe {
            let one = S::splat_f32(1.0);
            let cube = S::fma(S::mul(S::splat_f32(0.044_715), x), x, one);
            let inner = S::mul(S::mul(S::splat_f32(SQRT_2_OVER_PI), x), cube);
            S::mul(S::mul(S::splat_f32(0.5), x), S::add(one, math::tanh::<S>(inner)))
        }
    }
}

struct GeluErf;
impl Activation for GeluErf {
    #[inline(always)]
    unsafe fn of<S: Simd>(x: S::F) -> S::F {
        let mut lanes = [0.0; TILE_ROWS];
        // SAFETY: the caller vouches for the features; no vector has more lanes than the array.
        unsafe { S::store_f32(lanes.as_mut_ptr(), x) };
        for lane in &mut lanes[..S::LANES] {
            *lane = gelu_erf(*lane);
        }
        // SAFETY: as above.
        unsafe { S::load_f32(lanes.as_ptr()) }
    }
}

struct GeluQuick;
impl Activation for GeluQuick {
    #[inline(always)]
    unsafe fn of<S: Simd>(x: S::F) -> S::F {
        // SAFETY: the caller vouches for the features.
        unsafe {
            let e = math::exp::<S>(S::mul(x, S::splat_f32(-ClippedSwiglu::ALPHA)));
            S::div(x, S::add(S::splat_f32(1.0), e))
        }
    }
}

struct Relu;
impl Activation for Relu {
    #[inline(always)]
    unsafe fn of<S: Simd>(x: S::F) -> S::F {
        // SAFETY: the caller vouches for the features. The order of operands keeps NaN.
        unsafe { S::max(S::splat_f32(0.0), x) }
    }
}

struct ReluSquared;
impl Activation for ReluSquared {
    #[inline(always)]
    unsafe fn of<S: Simd>(x: S::F) -> S::F {
        // SAFETY: the caller vouches for the features.
        unsafe {
            let x = Relu::of::<S>(x);
            S::mul(x, x)
        }
    }
}

struct Sigmoid;
impl Activation for Sigmoid {
    #[inline(always)]
    unsafe fn of<S: Simd>(x: S::F) -> S::F {
        // SAFETY: the caller vouches for the features.
        unsafe {
            let one = S::splat_f32(1.0);
            let e = math::exp::<S>(S::mul(x, S::splat_f32(-1.0)));
            S::div(one, S::add(one, e))
        }
    }
}

struct ClippedSwiglu;
impl ClippedSwiglu {
    const ALPHA: f32 = 1.702;
    const LIMIT: f32 = 7.0;
}
impl Activation for ClippedSwiglu {
    #[inline(always)]
    unsafe fn of<S: Simd>(x: S::F) -> S::F {
        // SAFETY: the caller vouches for the features. The order of operands keeps NaN.
        unsafe {
            let x = S::min(S::splat_f32(Self::LIMIT), x);
            let e = math::exp::<S>(S::mul(x, S::splat_f32(-Self::ALPHA)));
            S::div(x, S::add(S::splat_f32(1.0), e))
        }
    }

    #[inline(always)]
    unsafe fn other_factor<S: Simd>(up: S::F) -> S::F {
        // SAFETY: the caller vouches for the features. The order of operands keeps NaN.
        unsafe {
            let up = S::max(S::splat_f32(-Self::LIMIT), S::min(S::splat_f32(Self::LIMIT), up));
            S::add(up, S::splat_f32(1.0))
        }
    }
}

struct Identity;
impl Activation for Identity {
    #[inline(always)]
    unsafe fn of<S: Simd>(x: S::F) -> S::F {
        x
    }
}

/// Returns [`GeluErf`] of one value.
fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Returns the error function, to within 1.5e-7.
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

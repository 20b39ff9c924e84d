//! [`softmax`]: the weights of a row from its scores.
//!
//! Unlike the products before and after it, it processes one row at a time. Invariant: the sum adds positions
//! `16 i + lane` to sum `lane` in order, then the 16 sums in order; masked positions add nothing.

use std::{ops::Range, slice};

use tokenmill_quant::CpuFeatures;

use crate::{
    attention::PAGE_LEN,
    lanes::{lanes, largest},
    math,
    simd::{Kernel, Simd, TILE_ROWS, dispatch},
};

/// Turns the scores of a row into weights: multiplies them by `scale`, caps them, and replaces those in
/// `seen` by `exp(score - max)` and the masked ones by 0. Returns the maximum and the sum of the weights.
///
/// # Panics
/// If `scores` is not a whole number of pages, or `seen` is empty or reaches beyond them.
pub fn softmax(
    features: CpuFeatures,
    scores: &mut [f32],
    seen: Range<usize>,
    scale: f32,
    soft_cap: Option<f32>,
) -> (f32, f32) {
    assert!(
        scores.len().is_multiple_of(PAGE_LEN) && seen.start < seen.end && seen.end <= scores.len(),
        "scores of whole pages"
    );
    // SAFETY: the kernel holds references only, and the length was checked.
    unsafe {
        dispatch(
            features,
            Softmax {
                scores,
                seen,
                scale,
                soft_cap,
            },
        )
    }
}

struct Softmax<'a> {
    scores: &'a mut [f32],
    seen: Range<usize>,
    scale: f32,
    soft_cap: Option<f32>,
}

impl Kernel for Softmax<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> (f32, f32) {
        let Self {
            scores,
            seen,
            scale,
            soft_cap,
        } = self;
        let len = scores.len();
        let ptr = scores.as_mut_ptr();
        // SAFETY: every vector is inside the scores, which are whole pages, and the processor has the features of `S`.
        unsafe {
            let mut maxima = [S::splat_f32(f32::NEG_INFINITY); TILE_ROWS / 8];
            // Masked scores are replaced first, so that one pass is enough; if minus infinity would not stay
            // minus infinity, there are two.
            let is_one_pass = soft_cap.is_none() && scale > 0.0;
            if is_one_pass {
                hide_unseen(slice::from_raw_parts_mut(ptr, len), &seen);
            }
            let factor = S::splat_f32(scale);
            for at in (0..len).step_by(PAGE_LEN) {
                for half in 0..S::HALVES {
                    let ptr = ptr.add(at + half * S::LANES);
                    let mut x = S::mul(S::load_f32(ptr), factor);
                    if let Some(cap) = soft_cap {
                        x = S::div(x, S::splat_f32(cap));
                        x = S::mul(math::tanh::<S>(x), S::splat_f32(cap));
                    }
                    S::store_f32(ptr, x);
                    maxima[half] = S::max(x, maxima[half]);
                }
            }
            if !is_one_pass {
                hide_unseen(slice::from_raw_parts_mut(ptr, len), &seen);
                maxima = [S::splat_f32(f32::NEG_INFINITY); TILE_ROWS / 8];
                for at in (0..len).step_by(PAGE_LEN) {
                    for half in 0..S::HALVES {
                        maxima[half] = S::max(S::load_f32(ptr.add(at + half * S::LANES)), maxima[half]);
                    }
                }
            }
            let max = largest(lanes::<S>(maxima));
            let offset = S::splat_f32(max);
            let mut sums = [S::splat_f32(0.0); TILE_ROWS / 8];
            for at in (0..len).step_by(PAGE_LEN) {
                for half in 0..S::HALVES {
                    let ptr = ptr.add(at + half * S::LANES);
                    let weight = math::exp::<S>(S::sub(S::load_f32(ptr), offset));
                    S::store_f32(ptr, weight);
                    sums[half] = S::add(sums[half], weight);
                }
            }
            (max, lanes::<S>(sums).iter().sum())
        }
    }
}

/// Masks the scores that are not seen, so that their weights are 0.
#[inline(always)]
fn hide_unseen(scores: &mut [f32], seen: &Range<usize>) {
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
}

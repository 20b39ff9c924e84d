//! [`Simd`]: computing the lanes of a warp with AVX2 and FMA where the host has them.
//!
//! The code is the loop over instructions and that of `compute`, compiled once more: the vectorizer makes the loops over lanes, and `fma`
//! is one instruction in place of a call. No float operation is reordered or fused, so the bits are the same.

use super::{BlockRunner, SplitEnd, Stop, warp::Split, warp::Warp};

/// Whether the host has AVX2 and FMA; only [`Simd::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simd {
    #[cfg(target_arch = "x86_64")]
    is_wide: bool,
}

impl Simd {
    pub(super) fn detect() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            is_wide: is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        }
    }
}

impl BlockRunner<'_> {
    /// Runs a split until it ends, waits, or is no longer the first of its warp.
    pub(super) fn run_split(&mut self, warp: &mut Warp, split: Split) -> Result<SplitEnd, Stop> {
        #[cfg(target_arch = "x86_64")]
        if self.simd.is_wide {
            // SAFETY: `Simd::detect` found both instruction sets.
            return unsafe { self.run_wide(warp, split) };
        }
        self.run_narrow(warp, split)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn run_wide(&mut self, warp: &mut Warp, split: Split) -> Result<SplitEnd, Stop> {
        self.run_split_any(warp, split)
    }

    fn run_narrow(&mut self, warp: &mut Warp, split: Split) -> Result<SplitEnd, Stop> {
        self.run_split_any(warp, split)
    }
}

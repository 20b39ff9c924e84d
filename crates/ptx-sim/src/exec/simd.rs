//! [`Simd`]: computing the lanes of a warp with AVX2 and FMA where the host has them.
//!
//! The code is that of `compute`, compiled once more: the vectorizer makes the loops over lanes, and `fma` is one instruction in place
//! of a call. No float operation is reordered or fused, so the bits are the same.

use super::{BlockRunner, Stop, Warp};
use crate::op::Op;

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
    /// Executes an instruction that does not change the flow.
    #[inline]
    pub(super) fn execute(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) -> Result<(), Stop> {
        #[cfg(target_arch = "x86_64")]
        if self.simd.is_wide {
            // SAFETY: `Simd::detect` found both instruction sets.
            return unsafe { self.execute_wide(warp, op, mask, pc) };
        }
        self.execute_narrow(warp, op, mask, pc)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn execute_wide(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) -> Result<(), Stop> {
        self.execute_any(warp, op, mask, pc)
    }

    fn execute_narrow(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) -> Result<(), Stop> {
        self.execute_any(warp, op, mask, pc)
    }
}

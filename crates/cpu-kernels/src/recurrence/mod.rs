//! [`conv_run`], [`delta_run`], [`ssm_run`]: some tokens of a recurrent layer, for some adjacent channels.
//!
//! Unlike in a product, a state is read, changed and written at every token. A run takes several tokens of
//! one sequence, so that its part of the state stays in the first-level cache. A state is `[n, n_lanes]`: the
//! channels are the lanes, so that no sum goes across lanes. Invariant: sums over `n` add elements `4 i + k`
//! to sum `k` in order, then `(0 + 1) + (2 + 3)`, so a run's results are those of its tokens one at a time; a
//! lane depends on its own channel alone.

mod conv;
mod delta;
mod ssm;

pub use conv::{ConvRun, MAX_TAPS, conv_run};
pub use delta::{DeltaRun, delta_run};
pub use ssm::{Decays, SsmRun, ssm_run};

use crate::simd::{Simd, TILE_ROWS};

/// The maximum number of channels that are adjacent in a state.
pub const MAX_LANES: usize = TILE_ROWS;
/// The number of running sums in a sum over a state's rows.
const N_SUMS: usize = 4;

/// Rows of equal width at equal distances, such as some columns of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct StridedRows<'a> {
    values: &'a [f32],
    stride: usize,
    width: usize,
}

impl<'a> StridedRows<'a> {
    /// Creates rows of `width` values, each `stride` values after the last; the first begins the slice.
    ///
    /// # Panics
    /// If rows would overlap.
    pub fn new(values: &'a [f32], stride: usize, width: usize) -> Self {
        assert!(
            width > 0 && width <= stride,
            "rows of {width} values at distances of {stride}"
        );
        Self {
            values,
            stride,
            width,
        }
    }

    /// Returns the number of rows.
    fn n_rows(&self) -> usize {
        match self.values.len().checked_sub(self.width) {
            Some(rest) => rest / self.stride + 1,
            None => 0,
        }
    }

    fn row(&self, row_idx: usize) -> &'a [f32] {
        &self.values[row_idx * self.stride..][..self.width]
    }

    /// Returns the start of a row.
    ///
    /// # Safety
    /// There is such a row.
    #[inline(always)]
    unsafe fn ptr(&self, row_idx: usize) -> *const f32 {
        assert!(row_idx < self.n_rows(), "row {row_idx}");
        // SAFETY: the row is inside the slice.
        unsafe { self.values.as_ptr().add(row_idx * self.stride) }
    }
}

/// Adds the running sums of lanes.
#[inline(always)]
fn fold<const N: usize>([a, b, c, d]: [[f32; N]; N_SUMS]) -> [f32; N] {
    let mut sum = [0.0; N];
    for lane in 0..N {
        sum[lane] = (a[lane] + b[lane]) + (c[lane] + d[lane]);
    }
    sum
}

/// Adds the running sums of a vector.
///
/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn fold_vector<S: Simd>([a, b, c, d]: [S::F; N_SUMS]) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe { S::add(S::add(a, b), S::add(c, d)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn values(n: usize, seed: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 37 + seed * 101) % 97) as f32 / 48.0 - 1.0;
        (0..n).map(value).collect()
    }

    #[test]
    fn rows_end_where_their_slice_does() {
        let values = values(10, 1);
        for (stride, width, expected) in [(4, 2, 3), (4, 3, 2), (4, 4, 2), (10, 10, 1), (11, 11, 0)] {
            assert_eq!(
                StridedRows::new(&values, stride, width).n_rows(),
                expected,
                "{width} of {stride}"
            );
        }
        assert_eq!(StridedRows::new(&values, 4, 2).row(2), &values[8..]);
    }
}

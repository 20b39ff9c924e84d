//! [`most_us`]: how much longer than its estimate a launch may take on a card.
//!
//! Separate from the estimate, which has one value for a launch. The other end of the range comes from others' measurements: the largest
//! differences between the points of `published` and their predictions. Small products are late by a time, large ones by a share of their own.
//!
//! The two points with 4-bit weights on an H200 are left out, though they took 2.2 and 2.0 times as long as predicted. Their kernels turn each weight
//! into f16, and this arithmetic bounds them: pull request 1874 of (T) has 335 MB in 138 us, 2.4 TB/s, and pull request 243 has 470 MB of f16 at
//! 4.0 TB/s. This project's kernels multiply such weights by activations of 8 bits, as those of (K) do, whose points are in the range.
//! Invariant: `published` rejects figures that are not these differences.

use tokenmill_sim_driver::LaunchEstimate;

/// Microseconds that a product of a few rows may take longer.
pub(super) const PRODUCT_LATE_US: f64 = 4.44;
/// Least share of the predicted rate that a product of a few rows with a matrix of hundreds of megabytes may reach.
pub(super) const LARGE_PRODUCT_SHARE: f64 = 0.82;
/// Microseconds that any other launch may take longer.
pub(super) const OTHER_LATE_US: f64 = 1.83;
/// Least share of the predicted rate that a product of many rows may reach.
pub(super) const MANY_ROWS_SHARE: f64 = 1.0;

/// Returns the most microseconds that a launch may take, with the gap before it.
pub(super) fn most_us(launch: &LaunchEstimate) -> f64 {
    let us = launch.estimate.us + launch.estimate.gap_us;
    if launch.module.starts_with("matmul") {
        us / MANY_ROWS_SHARE
    } else if launch.module.starts_with("matvec") || launch.module.starts_with("experts") {
        (us + PRODUCT_LATE_US).max(us / LARGE_PRODUCT_SHARE)
    } else {
        us + OTHER_LATE_US
    }
}
